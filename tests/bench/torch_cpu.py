"""The host's training step as a careful PyTorch user would write it for the CPU: same network, same sampling, same loss.

Eager, with what PyTorch offers against its own overhead: no gradient where none is needed, one pass for both states of
the online network, foreach Adam and clipping, in-place target update, priorities in a flat tensor with a cumulative sum.
One JSON line a round; with --wait a round starts when a line arrives on standard input.
"""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F

STATE, TRUNK, HEAD, ATOMS, ACTIONS = 48, 256, 128, 51, (5, 3, 3)
CAPACITY, V_MIN, V_MAX, GAMMA = 32768, -10.0, 10.0, 0.9
ALPHA, BETA, TAU, CLIP, LR = 0.6, 0.4, 0.005, 10.0, 1e-4


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear = torch.nn.Linear
        self.trunk1, self.trunk2 = linear(STATE, TRUNK), linear(TRUNK, TRUNK)
        self.hidden = linear(TRUNK, HEAD * (1 + len(ACTIONS)))  # every first head layer in one product
        self.value = linear(HEAD, ATOMS)
        self.advantage = torch.nn.ModuleList(linear(HEAD, n * ATOMS) for n in ACTIONS)

    def forward(self, x):
        h = F.relu(self.trunk2(F.relu(self.trunk1(x))))
        heads = F.relu(self.hidden(h)).split(HEAD, 1)
        value = self.value(heads[0]).unsqueeze(1)
        out = []
        for layer, h, n in zip(self.advantage, heads[1:], ACTIONS):
            a = layer(h).view(-1, n, ATOMS)
            out.append(value + a - a.mean(1, keepdim=True))
        return out


class Learner:
    def __init__(self, batch):
        self.batch = batch
        self.online, self.target = Branching(), Branching()
        self.target.load_state_dict(self.online.state_dict())
        self.params, self.targets = list(self.online.parameters()), list(self.target.parameters())
        self.adam = torch.optim.Adam(self.params, lr=LR, **self.best_adam())
        self.s, self.s2 = torch.rand(CAPACITY, STATE) * 2 - 1, torch.rand(CAPACITY, STATE) * 2 - 1
        self.a = torch.stack([torch.randint(0, n, (CAPACITY,)) for n in ACTIONS], 1)
        self.r, self.g = torch.rand(CAPACITY) * 2 - 1, torch.full((CAPACITY,), GAMMA)
        self.g[::100] = 0.0
        self.p = torch.rand(CAPACITY) + 0.1
        self.z = torch.linspace(V_MIN, V_MAX, ATOMS)
        self.rows = torch.arange(batch)

    def best_adam(self):
        """fused where this PyTorch has it for the CPU, else foreach."""
        try:
            probe = [torch.zeros(1, requires_grad=True)]
            probe[0].grad = torch.zeros(1)
            torch.optim.Adam(probe, fused=True).step()
            return {"fused": True}
        except (TypeError, RuntimeError):
            return {"foreach": True}

    def sample(self):
        cumulative = self.p.cumsum(0)
        total = cumulative[-1]
        x = (self.rows + torch.rand(self.batch)) * (total / self.batch)
        index = torch.searchsorted(cumulative, x).clamp_(max=CAPACITY - 1)
        weight = (CAPACITY * self.p[index] / total) ** -BETA
        return index, weight / weight.max()

    def project(self, p, r, g):
        dz = (V_MAX - V_MIN) / (ATOMS - 1)
        b = ((r[:, None] + g[:, None] * self.z).clamp_(V_MIN, V_MAX) - V_MIN).div_(dz).clamp_(0, ATOMS - 1)
        low = b.floor()
        part = b - low
        low = low.long()
        m = torch.zeros(self.batch, ATOMS)
        m.scatter_add_(1, low, p * (1 - part))
        return m.scatter_add_(1, (low + 1).clamp_(max=ATOMS - 1), p * part)

    def step(self):
        index, weight = self.sample()
        s, s2, a, r, g = self.s[index], self.s2[index], self.a[index], self.r[index], self.g[index]
        with torch.no_grad():
            goal, online = self.target(s2), self.online(s2)
            targets = []
            for d in range(len(ACTIONS)):
                best = (online[d].softmax(-1) @ self.z).argmax(-1)
                targets.append(self.project(goal[d][self.rows, best].softmax(-1), r, g))
        ce, entropy = 0.0, 0.0
        for d, logits in enumerate(self.online(s)):
            log_p = F.log_softmax(logits[self.rows, a[:, d]], -1)
            ce = ce - (targets[d] * log_p).sum(-1) / len(ACTIONS)
            entropy = entropy - torch.xlogy(targets[d], targets[d]).sum(-1) / len(ACTIONS)
        loss = (weight * ce).mean()
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, CLIP)
        self.adam.step()
        with torch.no_grad():
            torch._foreach_mul_(self.targets, 1 - TAU)
            torch._foreach_add_(self.targets, self.params, alpha=TAU)
            self.p[index] = ((ce - entropy).clamp_(min=0) + 1e-6) ** ALPHA
        return loss


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--batch", type=int, default=256)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--steps", type=int, default=40)
    args.add_argument("--compile", action="store_true")
    args.add_argument("--wait", action="store_true")
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    learner = Learner(args.batch)
    step = torch.compile(learner.step) if args.compile else learner.step
    for _ in range(15):
        step()
    name = f"torch {torch.__version__} {'compile' if args.compile else 'eager'}"
    for _ in range(args.rounds):
        if args.wait and not sys.stdin.readline():
            return
        start = time.perf_counter()
        for _ in range(args.steps):
            step()
        us = (time.perf_counter() - start) / args.steps * 1e6
        print(json.dumps({"what": name, "B": args.batch, "threads": torch.get_num_threads(), "us": round(us, 1)}), flush=True)


if __name__ == "__main__":
    main()
