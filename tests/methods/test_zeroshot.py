import torch
import torch.nn.functional as F

from fpl_tune.methods.zeroshot import ZeroShot
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play


def test_logits_are_scaled_cosines_with_the_hand_written_prompts(task: ClientTask) -> None:
    table = task.table("train")
    clients = torch.arange(4)
    batch = task.train.batch(clients, torch.arange(task.train.spare).expand(4, -1))
    text = task.towers.encode_text([f"a photo of a {name}." for name in task.known.names])
    found = ZeroShot().logits(task, ZeroShot().start(task, play(ZeroShot(), [task])[-1][0], clients), batch)
    wanted = task.scale * F.cosine_similarity(table.image[:, :-1].unsqueeze(2), text, dim=-1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
