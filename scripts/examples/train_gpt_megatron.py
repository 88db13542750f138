"""Host code of Megatron-LM of 2022 around the ops of a layer, which a plain model lacks (train_gpt.py --megatron).

Tensors split among ranks have their own random number state; every recomputed layer saves the states and restores them
later. Every step of a layer is its own autograd function. Every micro-batch is broadcast among the ranks that share a
layer, its size first, and the host waits for that. None of it changes the results. Kernels of torch that read and write
the same number of bytes replace Megatron-LM's own kernels, so that the times are about right.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn


class RandomStates:
    """A random number state of the device for tensors split among ranks, apart from the default state."""

    def __init__(self):
        self.states = {}

    def add(self, name, seed):
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states[name] = torch.cuda.get_rng_state()
        use_state(before)

    @contextlib.contextmanager
    def fork(self, name="split"):
        if name not in self.states:
            raise ValueError(f"no random state {name!r}")
        before = torch.cuda.get_rng_state()
        use_state(self.states[name])
        try:
            yield
        finally:
            self.states[name] = torch.cuda.get_rng_state()
            use_state(before)


RANDOM = RandomStates()


def use_state(state):
    torch.cuda.default_generators[torch.cuda.current_device()].set_state(state)


def saved_states():
    return torch.get_rng_state(), torch.cuda.get_rng_state(), dict(RANDOM.states)


def restore_states(states):
    torch.set_rng_state(states[0])
    use_state(states[1])
    RANDOM.states = states[2]


class Recomputed(torch.autograd.Function):
    """A layer that keeps only its input. Backward recomputes the layer and runs a nested backward pass
    through it."""

    @staticmethod
    def forward(context, layer, x):
        context.layer, context.states = layer, saved_states()
        context.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(context, gradient):
        now = saved_states()
        restore_states(context.states)
        (x,) = context.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = context.layer(x)
        restore_states(now)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Copied(torch.autograd.Function):
    """Identity; where ranks share a layer, Megatron-LM sums the gradient here."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, bias, shape, epsilon):
        y, mean, scale = torch.native_layer_norm(x, shape, weight, bias, epsilon)
        context.save_for_backward(x, weight, bias, mean, scale)
        context.shape = shape
        return y

    @staticmethod
    def backward(context, gradient):
        x, weight, bias, mean, scale = context.saved_tensors
        wanted = [True, True, True]
        found = torch.ops.aten.native_layer_norm_backward(gradient, x, context.shape, mean, scale, weight, bias, wanted)
        return (*found, None, None)


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return Norm.apply(x, self.weight, self.bias, self.normalized_shape, self.eps)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(context, scores):
        shares = scores.softmax(-1)
        context.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(context, gradient):
        (shares,) = context.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, shares, -1, shares.dtype)


MASKS = {}  # by shape, dtype and device


class SumWithDropout(torch.autograd.Function):
    """residual + dropout(x): TorchScript makes one kernel of it that writes its mask. Here a kernel reads a mask that
    is drawn once. The bias is in x already; its gradient comes from here, as with TorchScript."""

    @staticmethod
    def forward(context, x, bias, residual, chance):
        key = x.shape, x.dtype, x.device
        if key not in MASKS:
            kept = torch.rand(x.shape, device=x.device) >= chance
            MASKS[key] = kept, kept.to(x.dtype)
        context.kept, context.scale = MASKS[key][0], 1 / (1 - chance)
        return torch.addcmul(residual, x, MASKS[key][1], value=context.scale)

    @staticmethod
    def backward(context, gradient):
        of_x = torch.ops.aten.native_dropout_backward(gradient, context.kept, context.scale)
        return of_x, of_x.flatten(0, -2).sum(0), gradient, None


def broadcast_batch(batch, group, first):
    """Tokens and targets of a micro-batch, from the first of the ranks that share its layers."""
    sizes = torch.tensor(batch[0].shape, device=batch[0].device)
    dist.broadcast(sizes, first, group=group)
    sizes.cpu()
    both = torch.stack(batch)
    dist.broadcast(both, first, group=group)
    tokens, targets = both.unbind()
    length = tokens.shape[1]
    torch.tril(torch.ones((1, length, length), device=tokens.device)) < 0.5  # the mask of a causal model  # noqa: B015
    torch.arange(length, device=tokens.device).unsqueeze(0).expand_as(tokens)  # positions
    return tokens, targets
