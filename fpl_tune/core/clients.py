"""Clients that drop out, are slow, or attack: the group `clients` of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Annotated, Any, Literal

from pydantic import Field

from fpl_tune.core.spec import AtLeastOne, Decay, Fraction, Weight, dataclass


@dataclass
class SlowSpec:
    """Clients that do a part of their local work, the stragglers of FedProx (Li et al., MLSys 2020, Section 5.2)."""

    share: Decay = 0.0
    """Share of the clients that are slow, drawn by the seed."""
    steps: Fraction = 0.2
    """Share of the local epochs that a slow client does in a round."""
    late: Literal["keep", "drop"] = "keep"
    """keep: the server takes what a slow client has done; drop: it does not wait, so slow clients never train."""


@dataclass
class BackdoorSpec:
    """The patch of the attack `backdoor` (BadNets, Gu et al. 2017; of federated learning, Bagdasaryan et al. 2020)."""

    target: Annotated[int, Field(ge=0)] = 0
    """Id of the class that models are to predict where an image has the patch."""
    share: Fraction = 0.5
    """Share of a malicious client's training images that get the patch and the label of `target`."""
    size: Fraction = 0.4
    """Side of the patch, a checkerboard in the lower right corner, as a share of the image's. The compact tower takes
    little notice of sides below 0.4."""


@dataclass
class MaliciousSpec:
    """Clients that attack. They are not evaluated: accuracies are those of benign clients."""

    share: Decay = 0.0
    """Share of the training clients that are malicious, at least one if above 0; drawn by the seed."""
    attack: Literal["sign_flip", "noise", "scale", "alie", "ipm", "min_max", "label_flip", "backdoor"] = "sign_flip"
    """What they do, see [the attacks](../explanation/clients.md). On updates: `sign_flip`, `noise`, `scale`, `alie`,
    `ipm`, `min_max`. On data: `label_flip`, `backdoor`."""
    strength: Weight = 1.0
    """Share of the way from the honest update to that of the attack; 0 changes nothing. Attacks on data are the same at
    every strength above 0."""
    from_round: AtLeastOne = 1
    """First round of the attack."""
    backdoor: BackdoorSpec = field(default_factory=BackdoorSpec)
    """The patch of `backdoor`; its fields are below."""

    @property
    def planted(self) -> BackdoorSpec | None:
        """The backdoor, if that is the attack and there are malicious clients."""
        return self.backdoor if self.share and self.attack == "backdoor" else None


@dataclass
class ClientsSpec:
    """Clients that drop out, are slow, or attack."""

    drop: Decay = 0.0
    """Probability that the update of a client that was sampled does not arrive, drawn by seed, client and round."""
    slow: SlowSpec = field(default_factory=SlowSpec)
    """Slow clients; its fields are below."""
    malicious: MaliciousSpec = field(default_factory=MaliciousSpec)
    """Malicious clients; its fields are below."""


def with_clients(run: Mapping[str, Any]) -> dict[str, Any]:
    """A stored run or study with the usual clients if it was stored before there were others."""
    return {**({} if "clients" in run else {"clients": asdict(ClientsSpec())}), **run}
