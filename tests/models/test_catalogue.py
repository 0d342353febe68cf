import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.models.catalogue import (
    DEFAULT_FLOP_PER_S,
    NAMES,
    Layer,
    ModelProfile,
    communication_heavy,
    computation_heavy,
    profile,
)

PUBLISHED = {
    # parameters; GMACs of a forward pass (224 x 224 images, 128 tokens for BERT, 1024 for GPT-2)
    "vgg16": (138_357_544, 15.5),
    "resnet50": (25_557_032, 4.1),
    "alexnet": (61_100_840, 0.715),
    "bert-base": (109_482_240, 11.2),
    "bert-large": (335_141_888, 39.5),
    "gpt2": (124_439_808, 145.8),
}


@pytest.mark.parametrize(("name", "parameters", "gmacs"), [(n, *figures) for n, figures in PUBLISHED.items()])
def test_totals_are_the_published_ones(name: str, parameters: int, gmacs: float) -> None:
    model = profile(name)
    assert model.name == name
    assert model.parameters == parameters
    assert model.gradient_bytes == 4 * parameters == sum(model.layer_gradient_bytes())
    assert model.forward_flops / 2e9 == pytest.approx(gmacs, rel=0.02)


def test_every_known_layer_of_one_network_by_hand() -> None:
    alexnet = {layer.name: layer for layer in profile("alexnet").layers}
    assert alexnet["conv1"] == Layer("conv1", 3 * 64 * 121 + 64, 2 * 3 * 64 * 121 * 55 * 55)
    assert alexnet["conv2"] == Layer("conv2", 64 * 192 * 25 + 192, 2 * 64 * 192 * 25 * 27 * 27)
    assert alexnet["conv5"] == Layer("conv5", 256 * 256 * 9 + 256, 2 * 256 * 256 * 9 * 13 * 13)
    assert alexnet["fc6"] == Layer("fc6", 9216 * 4096 + 4096, 2 * 9216 * 4096)


def test_depth_of_the_networks() -> None:
    convolutions = [layer for layer in profile("resnet50").layers if ".conv" in layer.name]
    assert len(convolutions) + len(["conv1", "fc"]) == 50
    assert len(profile("vgg16").layers) == 16
    assert sum(layer.name.endswith("qkv") for layer in profile("bert-large").layers) == 24


@pytest.mark.parametrize("name", NAMES)
def test_layers_have_parameters_and_names_of_their_own(name: str) -> None:
    model = profile(name)
    assert all(layer.parameters > 0 and layer.forward_flops >= 0 for layer in model.layers)
    assert len({layer.name for layer in model.layers}) == len(model.layers)
    assert model.batch >= 1
    assert model.description


def test_times_follow_from_the_rate_and_the_batch() -> None:
    model = ModelProfile("m", (Layer("a", 10, 0), Layer("b", 20, 3_000_000)), 4, "")
    assert model.forward_ns(flop_per_s=1e12) == (1, 12_000)
    assert model.backward_ns(flop_per_s=1e12) == (1, 24_000)
    assert model.backward_ns(flop_per_s=2e12, batch=1) == (1, 3_000)
    assert model.compute_ns(flop_per_s=1e12) == 36_002
    assert model.forward_ns() == (1, round(12_000_000 / DEFAULT_FLOP_PER_S * 1e9))


@pytest.mark.parametrize(("rate", "batch"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (1e12, 0), (1e12, -3)])
def test_no_time_without_a_rate_and_a_batch(rate: float, batch: int) -> None:
    with pytest.raises(UserError, match="must be positive"):
        profile("alexnet").forward_ns(rate, batch)


layer_lists = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=30)


@given(shapes=layer_lists, minimum=st.integers(-5, 3000))
def test_fusing_keeps_totals_and_order(shapes: list[tuple[int, int]], minimum: int) -> None:
    layers = tuple(Layer(f"l{i}", *shape) for i, shape in enumerate(shapes))
    model = ModelProfile("m", layers, 1, "")
    fused = model.fused(minimum)
    assert (fused.parameters, fused.forward_flops) == (model.parameters, model.forward_flops)
    assert len(fused.layers) == 1 or all(layer.parameters >= minimum for layer in fused.layers)
    names = [name for layer in fused.layers for name in layer.name.split("..")]
    assert names == sorted(names, key=lambda name: int(name[1:]))
    assert (names[0], names[-1]) == ("l0", layers[-1].name)
    if minimum <= 1:
        assert fused == model


def test_a_small_layer_joins_the_one_that_is_ready_after_it() -> None:
    layers = (Layer("norm0", 1, 1), Layer("conv1", 50, 7), Layer("norm1", 2, 1), Layer("conv2", 60, 9))
    fused = ModelProfile("m", layers, 1, "").fused(10)
    assert fused.layers == (Layer("norm0..norm1", 53, 9), Layer("conv2", 60, 9))


@pytest.mark.parametrize("build", [communication_heavy, computation_heavy])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 8.0])
def test_synthetic_models_hold_their_ratio(build: type, ratio: float) -> None:
    model = build(ratio=ratio, size_bytes=10_000_002, layers=7, rate_bps=25e9, flop_per_s=1e13)
    communication_ns = 10_000_002 * 8 / 25e9 * 1e9
    assert communication_ns / model.compute_ns(1e13) == pytest.approx(ratio, rel=1e-3)
    sizes = model.layer_gradient_bytes()
    assert len(sizes) == 7
    assert sum(sizes) == 10_000_000
    assert max(sizes) - min(sizes) <= 4


def test_the_two_synthetic_defaults_lie_on_both_sides_of_balance() -> None:
    for model, ratio in ((communication_heavy(), 4.0), (computation_heavy(), 0.25)):
        assert model.gradient_bytes * 8 / 100e9 / (model.compute_ns() / 1e9) == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [{"ratio": 0.0}, {"layers": 0}, {"size_bytes": 8, "layers": 3}, {"rate_bps": -1.0}, {"flop_per_s": 0.0}],
)
def test_impossible_synthetic_models_are_a_users_error(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="communication-heavy"):
        communication_heavy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "name"), [("ResNet-50", "resnet50"), ("BERT_base", "bert-base"), ("GPT-2 small", "gpt2")]
)
def test_names_are_read_kindly(written: str, name: str) -> None:
    assert profile(written) == profile(name)


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(UserError) as caught:
        profile("vgg61")
    assert "unknown model 'vgg61'; did you mean 'vgg16'?" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)
    with pytest.raises(UserError, match=r"unknown model 'zzzz'; known: vgg16, "):
        profile("zzzz")
