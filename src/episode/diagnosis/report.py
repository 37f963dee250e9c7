"""A diagnosis as one HTML page that opens offline: the verdict, figures, and measured values."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from episode.diagnosis.diagnose import Diagnosis
from episode.diagnosis.findings import GLOSSARY
from episode.diagnosis.pictures import draw
from episode.results.store import write_bytes
from episode.version import __version__

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.sub, .because, footer { color: #666; } .because { font-size: .92rem; }
dl { margin: 1rem 0; } dt { font-weight: 600; margin-top: .9rem; } dd { margin: 0; }
.answer { font-size: 1.1rem; color: #0072B2; font-weight: 600; }
.pictures { display: grid; gap: 1rem;
            grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; } figure svg { width: 100%; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid #eee; }
th:first-child, td:first-child, .words :is(th, td):last-child { text-align: left; }
"""


def write_html(d: Diagnosis, path: Path) -> None:
    """Write the report, completely or not at all."""
    write_bytes(path, as_html(d).encode())


def as_html(d: Diagnosis) -> str:
    """Return the page."""
    title = f"Diagnosis of {html.escape(d.title)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
<p class="sub">{d.clients} clients, {d.parameters:,} parameters, seed {d.seed}; measured at
{len(d.points)} points on a path of {len(d.step_sizes)} steps, in {d.seconds:.0f} seconds</p>
<h2>Verdict</h2>
<p>{html.escape(GLOSSARY)}</p>
{_findings(d)}
<h2>Figures</h2>
{_figures(d)}
<h2>Estimates</h2>
<p>Constants of the paper's Assumption 1, estimated along the path. The ranges contain 90% of a
bootstrap over its points.</p>
{_table(("constant", "estimate", "range", "meaning"), estimate_rows(d), "wide words")}
<h2>Limits of this diagnosis</h2>
<ul>{"".join(f"<li>{html.escape(line)}</li>" for line in (*d.verdict.unknown, *d.notes))}</ul>
<h2>Measured points</h2>
{_points(d)}
<footer><p>episode {__version__}</p></footer>
</body></html>
"""


def estimate_rows(d: Diagnosis) -> list[tuple[str, str, str, str]]:
    """Return name, value, range and meaning of each constant."""
    e = d.estimates
    s, h = e.smoothness, e.heterogeneity
    return [
        ("L0", f"{e.L0:.4g}", _range(s.intercept_range), "curvature: ‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖"),
        ("L1", f"{e.L1:.4g}", _range(s.slope_range), f"its slope, from the {e.smoothness_from}"),
        ("κ", f"{e.kappa:.4g}", _range(h.intercept_range), "clients differ: ‖∇f_i‖ ≤ κ + ρ‖∇f‖"),
        ("ρ", f"{e.rho:.4g}", _range(h.slope_range), "its slope, 1 or more"),
        ("σ", f"{e.sigma:.4g}", _range(e.sigma_range), "noise: ‖∇F_i - ∇f_i‖ ≤ σ (95% of batches)"),
        ("Δ", f"at least {e.delta:.4g}", "", "how far f can fall: f(x_0) - min f"),
    ]  # fmt: skip


def _findings(d: Diagnosis) -> str:
    rows = []
    for f in d.verdict.findings:
        question, answer, because = (html.escape(t) for t in (f.question, f.answer, f.because))
        rows.append(
            f'<dt>{question}</dt><dd><span class="answer">{answer}</span><br>'
            f'<span class="because">{because}</span></dd>'
        )
    return "<dl>" + "\n".join(rows) + "</dl>"


def _figures(d: Diagnosis) -> str:
    figures = []
    for name, content in draw(d).items():
        text = content.decode()
        svg = text[text.index("<svg") :]
        figures.append(f"<figure><figcaption>{html.escape(name)}</figcaption>{svg}</figure>")
    return f'<div class="pictures">{"".join(figures)}</div>'


def _points(d: Diagnosis) -> str:
    header = ("step", "f", "‖∇f‖", "largest ‖∇f_i‖", "clients differ by", "noise", "curvature")
    rows = []
    for p in d.points:
        curvature = max((c.smoothness for c in (p.hessian or p.path)), default=math.nan)
        values = (p.loss, p.gradient_norm, max(p.client_norms), p.disagreement, p.noise_bound)
        rows.append([str(p.step), *(f"{v:.4g}" for v in (*values, curvature))])
    return _table(header, rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "wide") -> str:
    lines = ["".join(f"<th>{html.escape(name)}</th>" for name in header)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="{kind}"><table>{body}</table></div>'


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3g} to {bounds[1]:.3g}"
