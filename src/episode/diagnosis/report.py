"""A diagnosis as one HTML page that opens offline: the verdict, figures, and measured values."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from episode.diagnosis.diagnose import Diagnosis
from episode.diagnosis.findings import GLOSSARY
from episode.diagnosis.pictures import draw
from episode.results.report import content_policy, fill_page, html_table, page_file
from episode.results.store import write_text
from episode.results.tables import Table
from episode.version import __version__


def write_html(d: Diagnosis, path: Path) -> None:
    """Write the report, completely or not at all."""
    write_text(path, as_html(d))


def as_html(d: Diagnosis) -> str:
    """Return the page."""
    findings = [
        f'<dt>{escape(f.question)}</dt><dd><span class="answer">{escape(f.answer)}</span><br>'
        f'<span class="because">{escape(f.because)}</span></dd>'
        for f in d.verdict.findings
    ]
    figures = [
        f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>"
        for name, svg in draw(d).items()
    ]
    measured = (
        f"{d.clients} clients, {d.parameters:,} parameters, seed {d.seed}; measured at "
        f"{len(d.points)} points on a path of {len(d.step_sizes)} steps, in {d.seconds:.0f} seconds"
    )
    parts = {
        "policy": content_policy(),
        "title": f"Diagnosis of {escape(d.title)}",
        "style": page_file("diagnosis.css"),
        "measured": measured,
        "glossary": escape(GLOSSARY),
        "findings": "\n".join(findings),
        "figures": "".join(figures),
        "estimates": html_table(estimates_table(d)),
        "limits": "".join(f"<li>{escape(line)}</li>" for line in (*d.verdict.unknown, *d.notes)),
        "points": html_table(_points_table(d)),
        "version": __version__,
    }
    return fill_page("diagnosis.html", parts)


def estimates_table(d: Diagnosis) -> Table:
    """Tabulate value, 90% range and meaning of each constant."""
    e = d.estimates
    s, h = e.smoothness, e.heterogeneity
    rows = [
        ["L0", f"{e.L0:.4g}", _range(s.intercept_range), "curvature: ‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖"],
        ["L1", f"{e.L1:.4g}", _range(s.slope_range), f"its slope, from the {e.smoothness_from}"],
        ["κ", f"{e.kappa:.4g}", _range(h.intercept_range), "clients differ: ‖∇f_i‖ ≤ κ + ρ‖∇f‖"],
        ["ρ", f"{e.rho:.4g}", _range(h.slope_range), "its slope, 1 or more"],
        ["σ", f"{e.sigma:.4g}", _range(e.sigma_range), "noise: ‖∇F_i - ∇f_i‖ ≤ σ (95% of batches)"],
        ["Δ", f"at least {e.delta:.4g}", "", "how far f can fall: f(x_0) - min f"],
    ]  # fmt: skip
    return Table("", ["constant", "estimate", "90% range", "meaning"], rows, left=4)


def _points_table(d: Diagnosis) -> Table:
    columns = ["step", "f", "‖∇f‖", "largest ‖∇f_i‖", "clients differ by", "noise", "curvature"]
    rows = []
    for p in d.points:
        curvature = max((c.smoothness for c in p.curvature), default=math.nan)
        values = (p.loss, p.gradient_norm, max(p.client_norms), p.disagreement, p.noise_bound)
        rows.append([str(p.step), *(f"{v:.4g}" for v in (*values, curvature))])
    return Table("", columns, rows)


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3g} to {bounds[1]:.3g}"
