"""Resource usage of processes, and tables of measurements."""

import pathlib
import time


def cpu_seconds(process):
    """User and system time of a process, in seconds, from its CPU clock: see clock_getcpuclockid(3), which Python lacks."""
    return time.clock_gettime(~process.pid << 3 | 2)


def resident_bytes(process):
    """Resident memory of a process, from /proc."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def percentile(values, percent):
    """The value that `percent` of the values do not exceed; None if there are none."""
    values = sorted(values)
    return values[min(len(values) * percent // 100, len(values) - 1)] if values else None


def shown(value):
    """A figure with three digits."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}"


def table(columns, rows, ratios):
    """A Markdown table. `columns` are (key, title); `rows` maps a label to a figure for each key, some of which may be missing;
    `ratios` are (title, key, key of the divisor)."""
    lines = ["| | " + " | ".join([title for _, title in columns] + [title for title, _, _ in ratios]) + " |",
             "| --- |" + " ---: |" * (len(columns) + len(ratios))]
    for what, by in rows.items():
        cells = [shown(by.get(key)) for key, _ in columns]
        for _, over, under in ratios:
            known = by.get(over) is not None and by.get(under)
            cells.append(f"{by[over] / by[under]:.2f}" if known else "–")
        lines.append("| " + " | ".join([what, *cells]) + " |")
    return "\n".join(lines)
