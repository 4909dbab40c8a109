"""Times of an update with the settings of each recipe."""

from measured.files import WORDS, Row, column, median, ratios, rows, table


def table_of(device: str) -> str:
    """Write a row per method: the batch, an update, its ratio to that without a recipe."""
    by_method: dict[str, list[Row]] = {}
    for row in sorted(rows(f"recipe_cost_{device}"), key=lambda row: int(row["round"])):
        by_method.setdefault(row["method"], []).append(row)
    body = []
    for method, own in by_method.items():
        times, plain = _times(own), _times(by_method[method.split("-")[0]])
        found = ratios(times, plain)
        ratio = f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})"
        algorithm, _, recipe = method.partition("-")
        name = f"{algorithm.upper()}, {recipe or 'no recipe'}"
        body.append([name, own[0]["batch_size"], f"{1_000 * median(times):.3g} ms", ratio])
    return table(["", "batch", "an update", "ratio to no recipe"], body)


def rounds(device: str) -> str:
    return WORDS[len({row["round"] for row in rows(f"recipe_cost_{device}")})]


def with_options(options: str, method: str, conditionals: str = "no") -> str:
    """Write the milliseconds of an update on an H200 with these options of the compiler."""
    where = {"options": options, "method": method, "conditionals": conditionals}
    (found,) = column("gpu_options_nvidia_h200", "median_ms", **where)
    return f"{found:.3g}"


def _times(own: list[Row]) -> list[float]:
    """Return the seconds of an update in each round."""
    return [float(row["seconds"]) / int(row["updates"]) for row in own]
