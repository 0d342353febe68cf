"""`paceline models`: the model profiles that a scenario can name, and the layers of one."""

from typing import TYPE_CHECKING, Any

import typer

from paceline.commands.output import JsonFile, Legend, print_legend, write_json

if TYPE_CHECKING:
    from paceline.models.catalogue import ModelProfile


def models(
    name: str | None = typer.Argument(
        None, metavar="NAME", help="Show the layers of this model.", show_default=False
    ),
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """List the model profiles: size, gradients, work, and time of an iteration; or one model's layers.

    Examples:

      paceline models

      paceline models resnet50 --legend

      paceline models --json -
    """
    from paceline.models.catalogue import NAMES, profile

    chosen = [profile(name)] if name else [profile(known) for known in NAMES]
    if json_file:
        write_json(json_file, _as_json(chosen[0], layers=True) if name else _listing(chosen))
    if json_file == "-":
        return
    if name:
        _print_layers(chosen[0], legend)
    else:
        _print_models(chosen, legend)


MODEL_COLUMNS = ("layers", "parameters", "gradients", "GFLOP", "batch", "compute")
LAYER_COLUMNS = ("parameters", "gradients", "MFLOP", "forward", "backward")


def _listing(profiles: "list[ModelProfile]") -> dict[str, Any]:
    return {"models": [_as_json(model, layers=False) for model in profiles]}


def _as_json(model: "ModelProfile", layers: bool) -> dict[str, Any]:
    from paceline.models.catalogue import DEFAULT_FLOP_PER_S

    summary: dict[str, Any] = {
        "name": model.name,
        "description": model.description,
        "layer_count": len(model.layers),
        "parameters": model.parameters,
        "gradient_bytes": model.gradient_bytes,
        "forward_flops": model.forward_flops,
        "batch": model.batch,
        "flop_per_s": DEFAULT_FLOP_PER_S,
        "compute_ns": model.compute_ns(),
    }
    if layers:
        summary["layers"] = [
            {
                "name": layer.name,
                "parameters": layer.parameters,
                "gradient_bytes": layer.gradient_bytes,
                "forward_flops": layer.forward_flops,
                "forward_ns": forward_ns,
                "backward_ns": backward_ns,
            }
            for layer, forward_ns, backward_ns in zip(
                model.layers, model.forward_ns(), model.backward_ns(), strict=True
            )
        ]
    return summary


def _print_models(profiles: "list[ModelProfile]", legend: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.models.catalogue import DEFAULT_FLOP_PER_S
    from paceline.units import format_seconds, format_size

    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for title in MODEL_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for model in profiles:
        table.add_row(
            model.name,
            str(len(model.layers)),
            f"{model.parameters:,}",
            format_size(model.gradient_bytes),
            f"{model.forward_flops / 1e9:,.2f}",
            str(model.batch),
            format_seconds(model.compute_ns() / 1e9),
        )
    console = Console()
    console.print(table)
    if legend:
        print_legend(console, ("model", *MODEL_COLUMNS))
    console.print(
        f"GFLOP: a sample's forward pass, 2 a multiply-accumulate. compute: forward and backward (twice the "
        f"forward) of one batch at {DEFAULT_FLOP_PER_S / 1e12:g} TFLOP/s.",
        style="dim",
    )


def _print_layers(model: "ModelProfile", legend: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.models.catalogue import DEFAULT_FLOP_PER_S
    from paceline.units import format_seconds, format_size

    table = Table(box=None, pad_edge=False, show_footer=True)
    table.add_column("layer", footer="total", no_wrap=True)
    totals = (
        f"{model.parameters:,}",
        format_size(model.gradient_bytes),
        f"{model.forward_flops / 1e6:,.2f}",
        format_seconds(sum(model.forward_ns()) / 1e9),
        format_seconds(sum(model.backward_ns()) / 1e9),
    )
    for title, total in zip(LAYER_COLUMNS, totals, strict=True):
        table.add_column(title, footer=total, justify="right", no_wrap=True)
    for layer, forward_ns, backward_ns in zip(
        model.layers, model.forward_ns(), model.backward_ns(), strict=True
    ):
        table.add_row(
            layer.name,
            f"{layer.parameters:,}",
            format_size(layer.gradient_bytes),
            f"{layer.forward_flops / 1e6:,.2f}",
            format_seconds(forward_ns / 1e9),
            format_seconds(backward_ns / 1e9),
        )
    console = Console()
    console.print(f"{model.name}: {model.description}", highlight=False)
    console.print(table)
    if legend:
        print_legend(console, ("layer", *LAYER_COLUMNS))
    console.print(
        f"MFLOP: a sample's forward pass. Times of a batch of {model.batch} at "
        f"{DEFAULT_FLOP_PER_S / 1e12:g} TFLOP/s.",
        style="dim",
    )
