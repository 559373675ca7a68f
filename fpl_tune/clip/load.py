"""Towers by name: the shipped compact CLIP, open_clip's models, OpenAI's and open_clip's checkpoints."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpl_tune.clip import preprocessing, tokenizer
from fpl_tune.clip._openclip import ensure_importable, import_transformers
from fpl_tune.clip.tokenizer import first_line
from fpl_tune.clip.towers import Towers
from fpl_tune.core import plugins
from fpl_tune.core.contents import digest_of
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, did_you_mean, unknown
from fpl_tune.core.paths import local
from fpl_tune.core.sources import source_of
from fpl_tune.data.pool import digest_of_parts
from fpl_tune.data.transform import CLIP, Transform

COMPACT = "compact"
OWN = (COMPACT, "natural")
"""Towers that a module of this name in `fpl_tune.clip` reads."""
_FOLDER = "local-dir:"  # open_clip's prefix of a folder with `open_clip_config.json`
_DESCRIPTION = (*tokenizer.FILES, "config.json")
"""Files of Hugging Face beside a model's weights or its `open_clip_config.json`."""
_OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")
"""Entries beside the tensors that OpenAI's checkpoints alone have."""
_SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
_ON_THE_HUB = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""Files of weights in a repository of Hugging Face's Hub that open_clip names without a file."""


def load_towers(
    name: str,
    pretrained: str | None = None,
    *,
    quick_gelu: bool | str = "auto",
    preprocess: str = "auto",
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Towers:
    """The frozen towers called `name`.

    Args:
        name: `compact` (weights shipped with the package), `natural` (weights of packages, see
            `fpl_tune.clip.natural`), an open_clip model (RN50, ViT-B-16, ViT-B-16-SigLIP2), an
            architecture of your own as `local-dir:<folder with open_clip_config.json>`, or towers that another package
            brings (`fpl_tune.core.plugins`). Files of Hugging Face (`tokenizer.json`, `tokenizer_config.json`, and
            `config.json` of a text encoder) are read from that folder or that of the weights, else from the Hub.
        pretrained: a tag of open_clip (`openai`, ...), or the path of a checkpoint in OpenAI's or open_clip's
            layout; None gives random weights drawn from `seed`, and warns. `compact` takes a file that `make weights`
            wrote; None is the shipped one.
        quick_gelu: whether an open_clip model has QuickGELU; `auto` takes what the name, the tag or the file says.
        preprocess: for a file, the tag whose images were resized and normalised alike; `auto` takes what OpenAI's
            layout, the folder or all tags of the model say.

    Raises:
        ConfigError: unknown name or tag, a text tower that takes no context, a checkpoint that does not fit or does
            not state its activation or preprocessing.
        EnvironmentProblem: weights or files of a tokenizer that cannot be downloaded or read, or packages of Hugging
            Face that are not installed.
    """
    quick = None if quick_gelu == "auto" else bool(quick_gelu)
    own_towers = name in OWN or name in plugins.names("towers")
    if quick is not None and own_towers:
        raise ConfigError(f"The activation of {name!r} is part of its towers; leave out clip.quick_gelu={quick_gelu}.")
    if preprocess != "auto" and (own_towers or not local(pretrained or "").is_file()):
        raise ConfigError(f"clip.preprocess={preprocess} is for weights from a file; leave it out.")
    if name in OWN:
        module = import_module(f"fpl_tune.clip.{name}")
        model, words = module.load(None if pretrained is None else local(pretrained))
        return Towers(_cast(model, device, dtype), words, name=name, preprocessing=module.PREPROCESSING)
    if name in plugins.names("towers"):
        return plugins.load("towers", name)(pretrained, device=device, dtype=dtype, seed=seed)
    ensure_importable()
    import open_clip

    given, own = name, _own_config(name)
    if own is not None:
        name = f"{_FOLDER}{own.parent}"
    if own is None and name not in open_clip.list_models():
        raise unknown("model", name, [*OWN, *plugins.names("towers"), *open_clip.list_models()])
    if own is not None and not own.is_file():
        raise ConfigError(f"There is no {own}, which describes the architecture of clip.name={given}.")
    tags = open_clip.list_pretrained_tags_by_model(name)
    path = local(pretrained or "")
    if pretrained not in (None, *tags) and not path.is_file():
        raise ConfigError(
            f"pretrained={pretrained!r} is neither a file nor a tag of {name}. {did_you_mean(pretrained or '', tags)}"
        )
    folders = [file.parent for file in (own, path) if file is not None and file.is_file()]
    text = _text_config(name, folders)
    words = tokenizer.of_config(given, text, folders)
    if pretrained is None:
        warnings.warn(f"{name} has random weights (seed {seed}): its accuracies mean nothing.", stacklevel=2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _created(name, quick, text)
        how = preprocessing.of_config(model.visual.preprocess_cfg)
    elif pretrained in tags:
        model = _tagged(name, pretrained, quick, text)
        how = preprocessing.of_config(open_clip.get_pretrained_cfg(name, pretrained))
    else:
        model, stated = _from_file(name, path, quick, text)
        how = preprocessing.of_file(name, path, preprocess, stated)
    return Towers(_cast(model, device, dtype), words, name=given, preprocessing=how)


def outline_towers(name: str, pretrained: str | None, *, quick_gelu: bool | str = "auto", **more: Any) -> Towers:
    """Towers to plan with: those of `load_towers`, but random ones of the same sizes in place of weights by a tag, or
    in a file that is not here. Nothing is fetched, apart from a text encoder's configuration of Hugging Face.

    Args:
        name, pretrained, quick_gelu: as in `load_towers`.
        more: its other arguments.
    """
    if pretrained is not None and _is_of_open_clip(name) and not local(pretrained).is_file():
        import open_clip

        is_path = "/" in pretrained or Path(pretrained).suffix in _SUFFIXES
        if is_path or pretrained in open_clip.list_pretrained_tags_by_model(name):
            pretrained, more = None, {**more, "preprocess": "auto"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* has random weights", UserWarning)
        return load_towers(name, pretrained, quick_gelu=quick_gelu, **more)


def weights_here(name: str, pretrained: str | None) -> bool:
    """True if the weights that `load_towers` would read are on this machine, or if a package brings its own towers."""
    if pretrained is None or not _is_of_open_clip(name) or local(pretrained).is_file():
        return True
    import open_clip

    known = open_clip.get_pretrained_cfg(name, pretrained)
    if _in_openai_cache(known).is_file():
        return True
    repository, _, file = known.get("hf_hub", "").rpartition("/")
    if not repository:
        return False
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(repository, each), str) for each in ([file] if file else _ON_THE_HUB))


def _is_of_open_clip(name: str) -> bool:
    """True if a name is a model of open_clip's, which is imported then."""
    if name in OWN or name in plugins.names("towers") or name.startswith(_FOLDER):
        return False
    ensure_importable()
    import open_clip

    return name in open_clip.list_models()


def _in_openai_cache(known: Mapping[str, Any]) -> Path:
    """The file in OpenAI's cache folder of one of open_clip's tags; the folder itself if there is none."""
    return Path("~/.cache/clip").expanduser() / known.get("url", "").rpartition("/")[2]


def model_content(name: str) -> str:
    """The name of a model; of one in a folder of one's own with a digest of what describes it, instead of the path."""
    config = _own_config(name)
    if config is None:
        return name
    contents = [digest_of(path) for path in (config, *map(config.with_name, _DESCRIPTION))]
    return _FOLDER + digest_of_parts(contents)[:16] if contents[0] else name


def weights_print(name: str, pretrained: str | None = None) -> str:
    """Digest of the files that `load_towers` would read; "" of a tag of open_clip, which names its weights.

    Raises:
        ConfigError: the towers are of a package that cannot be imported, or a folder describes no model.
    """
    files = [local(pretrained)] if pretrained else []
    config, code = _own_config(name), ""
    if name in OWN:
        files = import_module(f"fpl_tune.clip.{name}").files(*files)
    elif config is not None:
        files.append(config)
    elif name in plugins.names("towers"):
        code = source_of(plugins.load("towers", name))
    files = [file for file in files if file.is_file()]
    if files and (config is None or config in files) and name not in OWN and not code:
        ensure_importable()
        folders = [file.parent for file in files]
        if "hf_tokenizer_name" in _text_config(name, folders):
            paths = [folder / file for folder in dict.fromkeys(folders) for file in _DESCRIPTION]
            files += [path for path in paths if path.is_file()]
    return digest_of_parts([code, *map(digest_of, files)])[:16] if code or files else ""


def _own_config(name: str) -> Path | None:
    """`open_clip_config.json` of a model in a folder of one's own, which may be missing; None for other names."""
    return local(name.removeprefix(_FOLDER)) / "open_clip_config.json" if name.startswith(_FOLDER) else None


def _cast(model: Any, device: str | torch.device, dtype: torch.dtype) -> Any:
    """The model in another arithmetic, its scale in float32 at least: in bfloat16, 100 would be 98.9."""
    scale = model.logit_scale.detach().clone()
    model = model.to(device=device, dtype=dtype)
    if dtype in (torch.float16, torch.bfloat16):
        model.logit_scale.data = scale.to(device)
    return model


def _text_config(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    """`text_cfg` of a model, its Hugging Face text encoder named by a folder that has its `config.json`, if one does.

    Raises:
        ConfigError: `open_clip_config.json` is not one of open_clip's, or `config.json` none of Hugging Face.
    """
    import open_clip
    from open_clip.hf_configs import arch_dict

    own = _own_config(name)
    if own is not None:
        try:
            text = dict(json.loads(own.read_text("utf-8"))["model_cfg"]["text_cfg"])
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{own} is no configuration of open_clip, with model_cfg and text_cfg in it.") from None
    else:
        text = dict((open_clip.get_model_config(name) or {}).get("text_cfg", {}))
    for folder in reversed(folders) if "hf_model_name" in text else ():  # the first one wins, as for tokenizers
        config = folder / "config.json"
        try:
            kind = json.loads(config.read_text("utf-8")).get("model_type") if config.is_file() else None
        except (ValueError, AttributeError):
            raise ConfigError(f"{config} is no configuration of Hugging Face, a JSON object.") from None
        if kind in arch_dict:
            text["hf_model_name"] = str(folder)
    return text


def _created(name: str, quick: bool | None, text: Mapping[str, Any], **options: Any) -> Any:
    import open_clip

    if quick is not None:
        options["quick_gelu"] = quick
    encoder = text.get("hf_model_name")
    if encoder:
        if not import_transformers():
            raise tokenizer.missing_package(name)
        options["text_cfg"] = {**text, "hf_model_pretrained": False}
    try:
        with tokenizer.quiet():
            return open_clip.create_model(name, pretrained_text=False, load_weights="pretrained" in options, **options)
    except OSError as error:
        if not encoder:
            raise
        raise EnvironmentProblem(
            f"The text encoder of {name} could not be fetched ({first_line(error)}): put config.json of "
            f"https://huggingface.co/{encoder} beside the weights that clip.pretrained names."
        ) from error


def _tagged(name: str, tag: str, quick: bool | None, text: Mapping[str, Any]) -> Any:
    """The model of one of open_clip's tags: from OpenAI's cache folder, the Hugging Face Hub's, or the network."""
    import open_clip

    config = open_clip.get_pretrained_cfg(name, tag)
    trained = bool(config.get("quick_gelu", False))
    quick = trained if quick is None else quick
    url, hub = config.get("url", ""), config.get("hf_hub", "").rstrip("/")
    cached = _in_openai_cache(config)
    if cached.is_file():
        return _from_file(name, cached, quick, text)[0]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "QuickGELU mismatch")  # judged before `quick` is applied
            return _created(name, quick, text, pretrained=tag)
    except EnvironmentProblem:
        raise
    except Exception as error:
        source = url or f"https://huggingface.co/{hub}/resolve/main/open_clip_model.safetensors"
        raise EnvironmentProblem(
            f"The weights {tag!r} of {name} could not be fetched ({first_line(error)}): download {source} and set "
            f"clip.pretrained to its path, clip.quick_gelu={str(trained).lower()} and clip.preprocess={tag}."
        ) from error


def _from_file(name: str, path: Path, quick: bool | None, text: Mapping[str, Any]) -> tuple[Any, Transform | None]:
    """The model in float32 with the tensors of a file, and its preprocessing if the file or the folder states it.

    The tensors of a CLIP with QuickGELU have the names and shapes of one with GELU. So the activation is `quick`, or
    what tells it: the name (`-quickgelu`), a configuration of one's own, or that the file is OpenAI's.
    """
    import open_clip

    try:
        state = _read(path)
    except Exception as error:
        first = first_line(error)
        if "weights_only" in first or "Weights only" in first:  # PyTorch's text goes on to advise running code
            first = "it holds more than tensors and plain values"
        raise EnvironmentProblem(f"The checkpoint {path} cannot be read ({first}): is the file whole?") from error
    openai = "input_resolution" in state
    state = {key: value for key, value in state.items() if key not in _OPENAI_SIZES}
    quick_gelu = openai or name.startswith(_FOLDER) or (open_clip.get_model_config(name) or {}).get("quick_gelu")
    if quick is None and not quick_gelu:
        raise ConfigError(
            f"{path} does not say whether its CLIP has QuickGELU or GELU: set clip.quick_gelu=true for weights of "
            "OpenAI or of a -quickgelu model, or clip.quick_gelu=false."
        )
    model = _created(name, True if quick is None and openai else quick, text)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} does not fit {name}: give the name of the checkpoint's model ({first}).") from error
    folder = preprocessing.of_config(model.visual.preprocess_cfg) if name.startswith(_FOLDER) else None
    return model, CLIP if openai else folder


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors of a checkpoint by name; only the code of OpenAI's own archives, known by their SHA-256, may run."""
    from open_clip import get_pretrained_url, list_openai_models
    from open_clip.factory import load_state_dict

    own = False
    if path.suffix == ".pt":
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        own = any(content in get_pretrained_url(name, "openai") for name in list_openai_models())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        if own:
            return torch.jit.load(str(path), map_location="cpu").state_dict()
        state = load_state_dict(str(path))
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TypeError("it holds no table of tensors")
    return state
