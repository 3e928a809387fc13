"""One process of a real ring, which test_ring.py starts two or four at a time: RANK WORLD FOLDER.

The steps are those of `softlookup.schedules`; what is simulated there by moving entries of a list is sent here with
torch.distributed, over the loopback device.
"""

import contextlib
import datetime as dt
import importlib
import os
import pathlib
import sys

import numpy as np
import torch
import torch.distributed as dist

from softlookup.lookup import attention
from softlookup.masks import causal
from softlookup.schedules import partial_attention, ring_step, ring_step_vjp, tree_step


class Process:
    """What one process holds of the text, and how it speaks with the others."""

    def __init__(self, rank, world, folder):
        self.rank, self.world, self.sent = rank, world, []
        with np.load(folder / "inputs.npz") as file:
            given = {name: torch.tensor(file[name]) for name in file.files}
        self.places = [given[f"places_{p}"] for p in range(world)]
        self.g, self.q, self.k, self.v = (given[name][:, self.places[rank]] for name in "gqkv")
        self.last = given["q"][:, -1:]

    def exchange(self, outgoing, shapes):
        """Send a list of arrays to each process that is named, and return what comes in these shapes from each."""
        incoming = {source: [torch.empty(shape, dtype=torch.float64) for shape in shapes[source]] for source in shapes}
        operations = [dist.P2POp(dist.isend, x.contiguous(), target) for target, xs in outgoing.items() for x in xs]
        operations += [dist.P2POp(dist.irecv, x, source) for source, xs in incoming.items() for x in xs]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        self.sent.append(sum(x.numel() for xs in outgoing.values() for x in xs))
        return incoming

    def around(self, block, held):
        """Pass a block on to the next process, and return the one that comes from the process before."""
        following, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        lengths = len(self.places[(held - 1) % self.world])
        shapes = [(x.shape[0], lengths, x.shape[2]) for x in block]
        return self.exchange({following: block}, {before: shapes})[before]

    def mask(self, held):
        return causal(self.places[self.rank], self.places[held])

    def ring(self):
        out = torch.zeros((*self.q.shape[:2], self.v.shape[2]), dtype=torch.float64)
        lse = torch.full(self.q.shape[:2], -torch.inf, dtype=torch.float64)
        block = [self.k, self.v]
        for step in range(self.world):
            held = (self.rank - step) % self.world
            out, lse = ring_step(out, lse, self.q, *block, mask=self.mask(held))
            if step < self.world - 1:
                block = self.around(block, held)
        return out, lse

    def ring_back(self, out, lse):
        dq, block, grads = 0.0, [self.k, self.v], [torch.zeros_like(self.k), torch.zeros_like(self.v)]
        for step in range(self.world):
            held = (self.rank - step) % self.world
            adds = ring_step_vjp(self.g, self.q, *block, out, lse, mask=self.mask(held))
            dq, grads = dq + adds[0], [x + y for x, y in zip(grads, adds[1:], strict=True)]
            if step < self.world - 1:
                *block, dk, dv = self.around([*block, *grads], held)
                grads = [dk, dv]
            else:
                grads = self.around(grads, held)
        return dq, *grads

    def tree(self):
        out, lse = partial_attention(self.last, self.k, self.v)
        top = lse.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX)
        blend, total = tree_step(out, lse, top)
        for x in (blend, total):
            dist.all_reduce(x)
        return blend / total[..., None]

    def all_to_all(self):
        everyone = range(self.world)
        pieces = {p: [x.chunk(self.world, dim=0)[p] for x in (self.q, self.k, self.v)] for p in everyone}
        own = pieces.pop(self.rank)
        shapes = {p: [(x.shape[0], len(self.places[p]), x.shape[2]) for x in own] for p in pieces}
        arrived = self.exchange(pieces, shapes) | {self.rank: own}
        whole = [torch.cat([arrived[p][i] for p in everyone], dim=1) for i in range(3)]
        order = torch.cat(self.places)
        out = attention(*whole, mask=causal(order, order))
        parts = dict(enumerate(out.split([len(x) for x in self.places], dim=1)))
        own = parts.pop(self.rank)
        back = self.exchange({p: [x] for p, x in parts.items()}, {p: [own.shape] for p in parts})
        return torch.cat([(back | {self.rank: [own]})[p][0] for p in everyone], dim=0)

    def ring_of_torch(self, theirs):
        """The loop of PyTorch's own context-parallel attention, with its kernel for CPUs, which wants one width."""
        theirs._cp_options.convert_to_f32 = False
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        heads, width = self.q.shape[0], self.v.shape[2]
        v = torch.nn.functional.pad(self.v, (0, self.q.shape[2] - width))
        arrays = [x.repeat_interleave(heads // x.shape[0], dim=0)[None] for x in (self.q, self.k, v)]
        out, _ = theirs._templated_ring_attention(
            dist.group.WORLD,
            2,
            lambda q, k, v, is_causal: kernel(q, k, v, is_causal=is_causal),
            *arrays,
            is_causal=True,
        )
        return out[0, ..., :width]


def main(rank, world, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    limit = dt.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world, timeout=limit
    )
    process = Process(rank, world, folder)
    out, lse = process.ring()
    dq, dk, dv = process.ring_back(out, lse)
    results = {"ring": out, "dq": dq, "dk": dk, "dv": dv, "all_to_all": process.all_to_all(), "tree": process.tree()}
    if len({len(place) for place in process.places}) == 1:
        with contextlib.suppress(ImportError):  # a private module, which other versions may not have
            theirs = importlib.import_module("torch.distributed.tensor.experimental._context_parallel._attention")
            results["ring_of_torch"] = process.ring_of_torch(theirs)
    np.savez(folder / f"{rank}.npz", sent=process.sent, **{name: x.numpy() for name, x in results.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
