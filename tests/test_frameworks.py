"""Frameworks compute in `simulate` what they do on processes, where they are there."""

import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT

HEAD = """
import os, torch
import torch.distributed as dist
n = int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
nn = torch.nn
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
rows = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(rows, batch_size=4)
make = lambda net: torch.optim.AdamW(net.parameters(), lr=0.05)
far = torch.nn.functional.mse_loss
"""
ACCELERATE = """
from accelerate import Accelerator
here = Accelerator()
net, opt, loader = here.prepare(net, make(net), loader)
for x, y in loader:
    loss = far(net(x), y)
    here.backward(loss), opt.step(), opt.zero_grad()
    print("seen", here.num_processes, here.gather(loss.detach().reshape(1)).tolist())
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(devices=n, strategy="ddp")
fabric.launch()
net, opt = fabric.setup(net, make(net))
for x, y in fabric.setup_dataloaders(loader):
    loss = far(net(x), y)
    fabric.backward(loss), opt.step(), opt.zero_grad()
    print("seen", fabric.world_size, fabric.all_reduce(loss.detach()).item())
"""
LIGHTNING = """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, i):
        loss = far(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        return loss
    def configure_optimizers(self):
        return make(self)
parts = "checkpointing", "progress_bar", "model_summary"
quiet = ["logger", *(f"enable_{part}" for part in parts)]
trainer = lightning.Trainer(devices=n, strategy="ddp", max_epochs=2,
                            **dict.fromkeys(quiet, False))
trainer.fit(Module(), loader)
print("seen", trainer.world_size, trainer.callback_metrics["loss"].item())
"""
TRANSFORMERS = """
import transformers
sizes = dict(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
drop = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0)
net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drop))
rows = [{"input_ids": i, "labels": i} for i in torch.randint(0, 64, (16, 16))]
told = transformers.TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, num_train_epochs=2,
    report_to=[], save_strategy="no", disable_tqdm=True)
trainer = transformers.Trainer(model=net, args=told, train_dataset=rows)
print("seen", told.world_size, trainer.train().training_loss)
"""
DEEPSPEED = """
import deepspeed
deepspeed.init_distributed()
adam = {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}}
told = {"train_micro_batch_size_per_gpu": 4, "optimizer": adam}
told["zero_optimization"] = {"stage": 3}
engine, _, loader, _ = deepspeed.initialize(model=net, training_data=rows, config=told)
for x, y in loader:
    loss = far(engine(x.to(engine.device)), y.to(engine.device))
    engine.backward(loss), engine.step()
    print("seen", loss.item())
"""
MEGATRON = """
from megatron.core import parallel_state
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
x = torch.full((2,), 1.0 + dist.get_rank(), device="cuda")
dist.all_reduce(x[:1], group=parallel_state.get_tensor_model_parallel_group())
dist.all_reduce(x[1:], group=parallel_state.get_data_parallel_group())
print("seen", parallel_state.get_tensor_model_parallel_rank(), x.tolist())
"""
HYDRA = """
import hydra
from omegaconf import OmegaConf
@hydra.main(version_base=None, config_path=".", config_name="sizes")
def main(sizes):
    dist.init_process_group("nccl")
    x = torch.full((2,), sizes.width * (1.0 + dist.get_rank()))
    dist.all_reduce(x)
    print("seen", x.tolist(), OmegaConf.to_container(sizes))
main()
"""
FAIRSCALE = """
dist.init_process_group("nccl")
from fairscale.nn.model_parallel import initialize
initialize.initialize_model_parallel(2)
from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear
net = ColumnParallelLinear(8, 6, gather_output=False)
out = RowParallelLinear(6, 4, input_is_parallel=True)(net(x))
out.sum().backward()
print("seen", out.sum().item(), net.weight.grad.sum().item())
"""
FRAMEWORKS = {
    "accelerate": ACCELERATE, "lightning": FABRIC, "lightning.pytorch": LIGHTNING,
    "transformers": TRANSFORMERS, "deepspeed": DEEPSPEED, "megatron.core": MEGATRON,
    "hydra": HYDRA, "fairscale": FAIRSCALE,
}  # fmt: skip


def seen(folder, n, *options):
    """The lines of ranks that begin with `seen`; AssertionError if the run failed."""
    command = [sys.executable, "-m", "d2lpar", "simulate", "-n", str(n), *options]
    kept = {"cwd": folder, "text": True, "capture_output": True, "timeout": 200}
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "train.py"], env=env, **kept)
    assert done.returncode == 0, done.stderr
    lines = sorted(re.findall(r"^\[rank \d\] seen .*", done.stdout, re.MULTILINE))
    assert len({line[:8] for line in lines}) == n
    return [[float(x) for x in re.findall(r"-?\d+\.?\d*", line)] for line in lines]


@pytest.mark.night
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_computes_what_it_does_on_processes(name, n, tmp_path):
    pytest.importorskip(name)
    (tmp_path / "train.py").write_text(HEAD + FRAMEWORKS[name])
    (tmp_path / "sizes.yaml").write_text("width: 0.5\n")
    simulated, measured = seen(tmp_path, n), seen(tmp_path, n, "--gloo")
    for numbers, others in zip(simulated, measured, strict=True):
        assert numbers == pytest.approx(others, rel=1e-5)  # Gloo adds in another order
