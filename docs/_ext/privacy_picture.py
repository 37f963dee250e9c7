"""Draw docs/privacy.svg: `python docs/_ext/privacy_picture.py`."""

from __future__ import annotations

from pathlib import Path

WIDTH, HEIGHT = 760, 330
SITES = [
    ("site 0", "v₀", "+ m₀₁ + m₀₂"),
    ("site 1", "v₁", "− m₀₁ + m₁₂"),
    ("site 2", "v₂", "− m₀₂ − m₁₂"),
]
BOX = 'rx="6" fill="#f6f8fa" stroke="#57606a"'


def text(x: float, y: float, words: str, size: int = 14, more: str = "") -> str:
    """Return a line of text, centred."""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="middle" {more}>{words}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    """Return a line with a head."""
    line = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {line} stroke="#57606a" stroke-width="1.5" marker-end="url(#head)" {more}/>'


def picture() -> str:
    """Return the picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" fill="#1f2328">',
        '<defs><marker id="head" markerWidth="9" markerHeight="9" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#57606a"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    middles = [130 + 250 * k for k in range(len(SITES))]
    for middle, (name, value, masks) in zip(middles, SITES, strict=True):
        parts.append(f'<rect x="{middle - 95}" y="30" width="190" height="80" {BOX}/>')
        parts.append(text(middle, 53, name, more='font-weight="bold"'))
        parts.append(text(middle, 76, f"keeps {value}, its data and state", 12))
        parts.append(text(middle, 98, f"sends {value} {masks}", 13))
        parts.append(arrow(middle, 112, 380 + (middle - 380) * 0.35, 206))
    parts.append(text(255, 64, "m₀₁", 12, 'fill="#0969da"'))
    parts.append(text(505, 64, "m₁₂", 12, 'fill="#0969da"'))
    parts += [arrow(x, 72, x + 54, 72, 'stroke-dasharray="4 3"') for x in (227, 477)]
    parts.append(
        text(
            380,
            20,
            "masks of each pair (m₀₁, m₀₂, m₁₂): X25519, HKDF, AES-CTR; never sent",
            12,
            'fill="#0969da"',
        )
    )
    parts.append(text(120, 170, "each alone: uniform noise", 13, 'fill="#cf222e"'))
    parts.append(text(650, 170, "modulo 2⁶⁴, any order", 13))
    parts.append(f'<rect x="200" y="210" width="360" height="90" {BOX}/>')
    parts.append(text(380, 235, "server", more='font-weight="bold"'))
    parts.append(text(380, 260, "adds up: all masks cancel"))
    parts.append(text(380, 285, "v₀ + v₁ + v₂, and nothing of one site", more='fill="#1a7f37"'))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    (Path(__file__).parents[1] / "privacy.svg").write_text(picture())
