"""Model profiles: what a training iteration computes and sends, layer by layer.

Layers are listed in forward order. A gradient becomes ready in reverse order during the backward pass, and
the next iteration's forward pass needs the layers' results in forward order. The real models are computed
here from their published shapes; the tests hold them to the published totals of parameters and operations.

How operations are counted (all ours):
- a multiply-accumulate is 2 FLOPs; a convolution or a matrix product counts these alone, a normalisation one
  multiply-accumulate an element; activations, pooling, softmax, biases and embedding look-ups count nothing;
- the backward pass costs twice the forward pass (one product for the input's gradient, one for the weights');
- time is FLOPs over a sustained rate, `DEFAULT_FLOP_PER_S` unless told: about what one data-centre GPU
  sustains in mixed precision. A layer never takes less than a nanosecond;
- gradients are float32: 4 bytes a parameter.

Every layer has parameters. What has none (attention scores, an output head tied to the embedding) is
counted in the layer that it runs with.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.errors import UserError

DEFAULT_FLOP_PER_S = 50e12
BYTES_PER_PARAMETER = 4
BACKWARD_OVER_FORWARD = 2


@dataclass(frozen=True, slots=True)
class Layer:
    """One gradient tensor (or several that are ready together) and the work before it; FLOPs a sample."""

    name: str
    parameters: int
    forward_flops: int
    backward_flops: int | None = None
    """By default `BACKWARD_OVER_FORWARD` times those of the forward pass."""

    @property
    def gradient_bytes(self) -> int:
        return BYTES_PER_PARAMETER * self.parameters

    def forward_ns(self, batch: int, flop_per_s: float = DEFAULT_FLOP_PER_S) -> int:
        """Whole nanoseconds, at least 1, of the forward pass of `batch` samples."""
        return _time_ns(self.forward_flops, batch, flop_per_s)

    def backward_ns(self, batch: int, flop_per_s: float = DEFAULT_FLOP_PER_S) -> int:
        """Whole nanoseconds, at least 1, of the backward pass of `batch` samples."""
        flops = (
            BACKWARD_OVER_FORWARD * self.forward_flops if self.backward_flops is None else self.backward_flops
        )
        return _time_ns(flops, batch, flop_per_s)


def _time_ns(flops: int, batch: int, flop_per_s: float) -> int:
    if batch < 1 or not flop_per_s > 0:
        raise UserError(f"a batch of {batch} at {flop_per_s:g} FLOP/s takes no time; both must be positive")
    return max(1, round(flops * batch / flop_per_s * 1e9))


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model's layers in forward order, and the batch a worker takes unless told otherwise."""

    name: str
    layers: tuple[Layer, ...]
    batch: int
    description: str

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def forward_flops(self) -> int:
        """FLOPs of one sample's forward pass."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        return BYTES_PER_PARAMETER * self.parameters

    def layer_gradient_bytes(self) -> tuple[int, ...]:
        return tuple(layer.gradient_bytes for layer in self.layers)

    def forward_ns(self, flop_per_s: float = DEFAULT_FLOP_PER_S, batch: int | None = None) -> tuple[int, ...]:
        """Each layer's forward time; `batch` samples a worker, by default the profile's."""
        samples = self.batch if batch is None else batch
        return tuple(layer.forward_ns(samples, flop_per_s) for layer in self.layers)

    def backward_ns(
        self, flop_per_s: float = DEFAULT_FLOP_PER_S, batch: int | None = None
    ) -> tuple[int, ...]:
        """Each layer's backward time, in forward order."""
        samples = self.batch if batch is None else batch
        return tuple(layer.backward_ns(samples, flop_per_s) for layer in self.layers)

    def compute_ns(self, flop_per_s: float = DEFAULT_FLOP_PER_S, batch: int | None = None) -> int:
        """An iteration's computation: all forward and backward passes."""
        return sum(self.forward_ns(flop_per_s, batch)) + sum(self.backward_ns(flop_per_s, batch))

    def fused(self, min_parameters: int) -> "ModelProfile":
        """Layers merged with their neighbours until each has `min_parameters`; totals stay the same.

        Filled in backward order, as frameworks fill their buckets: a small tensor waits for those that are
        ready after it. What is left over at the model's input joins the bucket above it.
        """
        buckets: list[list[Layer]] = []
        filling: list[Layer] = []
        for layer in reversed(self.layers):
            filling.insert(0, layer)
            if sum(member.parameters for member in filling) >= min_parameters:
                buckets.insert(0, filling)
                filling = []
        if filling and buckets:
            buckets[0] = filling + buckets[0]
        elif filling:
            buckets = [filling]
        return replace(self, layers=tuple(_merged(bucket) for bucket in buckets))


def profile(name: str) -> ModelProfile:
    """A model by name; case, spaces, hyphens and underscores do not matter."""
    if build := _BY_KEY.get(_key(name)):
        return build()
    close = difflib.get_close_matches(_key(name), list(_BY_KEY), n=1, cutoff=0.5)
    hint = f"did you mean {_BY_KEY[close[0]]().name!r}? " if close else ""
    raise UserError(f"unknown model {name!r}; {hint}known: {', '.join(NAMES)}")


def communication_heavy(
    ratio: float = 4.0, size_bytes: int = 64_000_000, layers: int = 16, rate_bps: float = 100e9,
    flop_per_s: float = DEFAULT_FLOP_PER_S,
) -> ModelProfile:  # fmt: skip
    """A synthetic model that sends `ratio` times as long as it computes; see `_synthetic`."""
    return _synthetic("communication-heavy", ratio, size_bytes, layers, rate_bps, flop_per_s)


def computation_heavy(
    ratio: float = 0.25, size_bytes: int = 64_000_000, layers: int = 16, rate_bps: float = 100e9,
    flop_per_s: float = DEFAULT_FLOP_PER_S,
) -> ModelProfile:  # fmt: skip
    """A synthetic model that computes `1 / ratio` times as long as it sends; see `_synthetic`."""
    return _synthetic("computation-heavy", ratio, size_bytes, layers, rate_bps, flop_per_s)


def _synthetic(
    name: str, ratio: float, size_bytes: int, layers: int, rate_bps: float, flop_per_s: float
) -> ModelProfile:
    """Equal layers of `size_bytes` in all; time to send them once at `rate_bps` / compute time = `ratio`.

    The ratio holds at `flop_per_s` and the profile's batch of 1; at another rate it scales with it.
    """
    parameters = size_bytes // BYTES_PER_PARAMETER
    if layers < 1 or parameters < layers:
        raise UserError(f"{name}: {size_bytes} bytes cannot make {layers} layers of a parameter or more each")
    if not (ratio > 0 and rate_bps > 0 and flop_per_s > 0):
        raise UserError(f"{name}: ratio, link rate and FLOP rate must be positive")
    compute_s = size_bytes * 8 / rate_bps / ratio
    flops = round(compute_s * flop_per_s / (1 + BACKWARD_OVER_FORWARD) / layers)
    base, extra = divmod(parameters, layers)
    return ModelProfile(
        name,
        tuple(Layer(f"layer{i}", base + (i < extra), flops) for i in range(layers)),
        batch=1,
        description=f"synthetic: {layers} equal layers, sends {ratio:g} times as long as it computes",
    )


# --- arithmetic of layers ----------------------------------------------------------------------------------


def _merged(layers: list[Layer]) -> Layer:
    name = layers[0].name if len(layers) == 1 else f"{layers[0].name}..{layers[-1].name}"
    backward = None
    if any(each.backward_flops is not None for each in layers):
        backward = sum(each.backward_flops or 0 for each in layers)
    return Layer(
        name, sum(each.parameters for each in layers), sum(each.forward_flops for each in layers), backward
    )


def _conv(name: str, cin: int, cout: int, kernel: int, size_out: int, bias: bool = True) -> Layer:
    weights = cin * cout * kernel * kernel
    return Layer(name, weights + (cout if bias else 0), 2 * weights * size_out * size_out)


def _linear(name: str, inputs: int, outputs: int, positions: int = 1, extra_macs: int = 0) -> Layer:
    """A matrix with bias, applied at `positions`; `extra_macs` run with it and have no parameters."""
    macs = inputs * outputs * positions + extra_macs
    return Layer(name, inputs * outputs + outputs, 2 * macs)


def _norm(name: str, channels: int, positions: int) -> Layer:
    """Batch or layer normalisation: a scale and a shift a channel."""
    return Layer(name, 2 * channels, 2 * channels * positions)


def _size_out(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


# --- published models --------------------------------------------------------------------------------------


def _vgg16() -> ModelProfile:
    layers: list[Layer] = []
    channels, size = 3, 224
    for stage, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for index in range(1, depth + 1):
            layers.append(_conv(f"conv{stage}_{index}", channels, width, 3, size))
            channels = width
        size //= 2
    layers += [
        _linear("fc6", 512 * size * size, 4096),
        _linear("fc7", 4096, 4096),
        _linear("fc8", 4096, 1000),
    ]
    return ModelProfile("vgg16", tuple(layers), 32, "VGG-16 for 224 x 224 images, 1000 classes")


def _alexnet() -> ModelProfile:
    first = _size_out(224, 11, 4, 2)
    second = _size_out(first, 3, 2, 0)
    third = _size_out(second, 3, 2, 0)
    last = _size_out(third, 3, 2, 0)
    layers = (
        _conv("conv1", 3, 64, 11, first),
        _conv("conv2", 64, 192, 5, second),
        _conv("conv3", 192, 384, 3, third),
        _conv("conv4", 384, 256, 3, third),
        _conv("conv5", 256, 256, 3, third),
        _linear("fc6", 256 * last * last, 4096),
        _linear("fc7", 4096, 4096),
        _linear("fc8", 4096, 1000),
    )
    return ModelProfile("alexnet", layers, 128, "AlexNet in one column (64 first channels), 224 x 224 images")


def _resnet50() -> ModelProfile:
    size = _size_out(224, 7, 2, 3)
    layers = [_conv("conv1", 3, 64, 7, size, bias=False), _norm("bn1", 64, size * size)]
    size, channels = _size_out(size, 3, 2, 1), 64
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(depth):
            at = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            size_in, size = size, size // stride  # the stride sits in the 3 x 3 convolution
            shapes = ((channels, width, 1, size_in), (width, width, 3, size), (width, 4 * width, 1, size))
            for index, (cin, cout, kernel, out) in enumerate(shapes, 1):
                layers.append(_conv(f"{at}.conv{index}", cin, cout, kernel, out, bias=False))
                layers.append(_norm(f"{at}.bn{index}", cout, out * out))
            if block == 0:
                layers.append(_conv(f"{at}.shortcut", channels, 4 * width, 1, size, bias=False))
                layers.append(_norm(f"{at}.shortcut_bn", 4 * width, size * size))
            channels = 4 * width
    layers.append(_linear("fc", channels, 1000))
    return ModelProfile("resnet50", tuple(layers), 64, "ResNet-50 for 224 x 224 images, 1000 classes")


def _attention(at: str, width: int, tokens: int) -> list[Layer]:
    scores_macs = 2 * tokens * tokens * width  # queries with keys, then weights with values, over all heads
    return [
        _linear(f"{at}.qkv", width, 3 * width, tokens),
        _linear(f"{at}.output", width, width, tokens, extra_macs=scores_macs),
    ]


def _bert(name: str, depth: int, width: int, batch: int) -> ModelProfile:
    tokens, vocabulary, positions, segments = 128, 30522, 512, 2
    layers = [
        Layer("embeddings", (vocabulary + positions + segments) * width, 0),
        _norm("embeddings.norm", width, tokens),
    ]
    for index in range(depth):
        at = f"encoder{index}"
        layers += _attention(f"{at}.attention", width, tokens)
        layers += [
            _norm(f"{at}.norm1", width, tokens),
            _linear(f"{at}.ffn1", width, 4 * width, tokens),
            _linear(f"{at}.ffn2", 4 * width, width, tokens),
            _norm(f"{at}.norm2", width, tokens),
        ]
    layers.append(_linear("pooler", width, width))  # the first token alone
    return ModelProfile(
        name, tuple(layers), batch, f"{depth} encoders of {width}, with pooler, {tokens} tokens"
    )


def _gpt2() -> ModelProfile:
    tokens, vocabulary, width, depth = 1024, 50257, 768, 12
    layers = [Layer("wte", vocabulary * width, 0), Layer("wpe", tokens * width, 0)]
    for index in range(depth):
        at = f"block{index}"
        layers.append(_norm(f"{at}.norm1", width, tokens))
        layers += _attention(f"{at}.attention", width, tokens)
        layers += [
            _norm(f"{at}.norm2", width, tokens),
            _linear(f"{at}.mlp1", width, 4 * width, tokens),
            _linear(f"{at}.mlp2", 4 * width, width, tokens),
        ]
    # The output head is the embedding's transpose: its work is here, its gradient leaves with `wte`.
    norm = _norm("final_norm+head", width, tokens)
    layers.append(replace(norm, forward_flops=norm.forward_flops + 2 * vocabulary * width * tokens))
    return ModelProfile("gpt2", tuple(layers), 4, f"GPT-2 small: {depth} blocks of {width}, {tokens} tokens")


def _key(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


_BUILDERS: dict[str, Callable[[], ModelProfile]] = {
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "alexnet": _alexnet,
    "bert-base": lambda: _bert("bert-base", 12, 768, 32),
    "bert-large": lambda: _bert("bert-large", 24, 1024, 16),
    "gpt2": _gpt2,
    "communication-heavy": communication_heavy,
    "computation-heavy": computation_heavy,
}
NAMES = tuple(_BUILDERS)
_BY_KEY = {_key(name): build for name, build in _BUILDERS.items()} | {"gpt2small": _gpt2}
