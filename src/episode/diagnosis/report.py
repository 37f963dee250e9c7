"""A diagnosis as one HTML file that opens offline: words first, then pictures, then figures."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from episode.diagnosis.diagnose import Diagnosis
from episode.diagnosis.pictures import draw
from episode.results.store import dumps, write_bytes
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
    """Writes the report, whole or not at all."""
    write_bytes(path, as_html(d).encode())


def write_json(d: Diagnosis, path: Path) -> None:
    """Writes every figure, whole or not at all."""
    write_bytes(path, (dumps(d.to_dict(), indent=2) + "\n").encode())


def as_html(d: Diagnosis) -> str:
    """The page."""
    size = f"{d.clients} clients, {d.parameters:,} parameters, seed {d.seed}"
    walked = f"{len(d.points)} points on a path of {len(d.sizes)} steps, {d.seconds:.0f} seconds"
    parts = [
        f"<h1>Diagnosis of {html.escape(d.title)}</h1>",
        f'<p class="sub">{size}; {walked}</p>',
        "<h2>Verdict</h2>",
        _findings(d),
        "<h2>Pictures</h2>",
        _pictures(d),
        "<h2>Estimates</h2>",
        "<p>Of the constants of the paper's Assumption 1, along this path; ranges hold 90% of "
        "a bootstrap over its points.</p>",
        _table(("constant", "estimate", "range", "meaning"), estimate_rows(d), "wide words"),
        "<h2>What this cannot know</h2>",
        _list([*d.verdict.unknown, *d.notes]),
        "<h2>Points</h2>",
        _points(d),
        f"<footer><p>episode {__version__}</p></footer>",
    ]
    body = "\n".join(parts)
    title = html.escape(d.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Diagnosis of {title}</title>\n<style>{STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def estimate_rows(d: Diagnosis) -> list[tuple[str, str, str, str]]:
    """Name, value, range and meaning of each constant."""
    e = d.estimates
    s, h = e.smoothness, e.heterogeneity
    return [
        ("L0", f"{e.L0:.4g}", _range(s.intercept_range), "‖∇²f_i‖ ≤ L0 + L1‖∇f_i‖"),
        ("L1", f"{e.L1:.4g}", _range(s.slope_range), f"from the {e.smoothness_from}"),
        ("κ", f"{e.kappa:.4g}", _range(h.intercept_range), "‖∇f_i‖ ≤ κ + ρ‖∇f‖"),
        ("ρ", f"{e.rho:.4g}", _range(h.slope_range), "1 or more"),
        ("σ", f"{e.sigma:.4g}", _range(e.sigma_range), "‖∇F_i - ∇f_i‖ ≤ σ for 95% of batches"),
        ("Δ", f"at least {e.delta:.4g}", "", "f(x_0) - min f"),
    ]


def _findings(d: Diagnosis) -> str:
    rows = []
    for f in d.verdict.findings:
        question, answer, because = (html.escape(t) for t in (f.question, f.answer, f.because))
        rows.append(
            f'<dt>{question}</dt><dd><span class="answer">{answer}</span><br>'
            f'<span class="because">{because}.</span></dd>'
        )
    return "<dl>" + "\n".join(rows) + "</dl>"


def _pictures(d: Diagnosis) -> str:
    figures = []
    for name, content in draw(d).items():
        text = content.decode()
        svg = text[text.index("<svg") :]
        figures.append(f"<figure><figcaption>{html.escape(name)}</figcaption>{svg}</figure>")
    return f'<div class="pictures">{"".join(figures)}</div>'


def _points(d: Diagnosis) -> str:
    header = ("step", "f", "‖∇f‖", "largest ‖∇f_i‖", "clients differ by", "noise", "smoothness")
    rows = [
        (
            str(p.step),
            *(
                f"{v:.4g}"
                for v in (
                    p.loss,
                    p.gradient_norm,
                    max(p.client_norms),
                    p.disagreement,
                    p.noise_bound,
                    max((c.smoothness for c in (p.hessian or p.path)), default=math.nan),
                )
            ),
        )
        for p in d.points
    ]
    return _table(header, rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "wide") -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows
    )
    return f'<div class="{kind}"><table><tr>{head}</tr>{body}</table></div>'


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3g} to {bounds[1]:.3g}"
