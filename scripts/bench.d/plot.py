"""The plot: wall time of every contender, a group of bars for each input, as SVG without any library."""

from html import escape

from contenders import INPUTS, OURS
from figures import medians

WIDTH, LEFT, RIGHT, BAR, GAP = 820, 150, 70, 16, 4
OURS_COLOUR, PEER_COLOUR, TEXT, PALE = "#1b6ca8", "#b9c4cc", "#24292f", "#6a737d"


def text(x, y, words, size=12, anchor="start", colour=TEXT, weight="normal"):
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(words)}</text>')


def bar(y, name, seconds, scale):
    ours = name == OURS
    width, middle = max(1.0, seconds * scale), y + BAR - 4
    yield text(LEFT - 8, middle, name, anchor="end", weight="bold" if ours else "normal")
    colour = OURS_COLOUR if ours else PEER_COLOUR
    yield f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
    yield text(LEFT + width + 6, middle, f"{seconds:.2f}", colour=PALE)


def svg(results):
    groups = [(name, sorted(medians(result).items(), key=lambda item: item[1]["wall"]))
              for name, result in results["inputs"].items()]
    longest = max((row["wall"] for _, rows in groups for _, row in rows), default=1)
    scale = (WIDTH - LEFT - RIGHT) / longest
    gib = results["size"] / (1 << 30)
    title = f"Installing a {gib:g} GiB disk image: wall time in seconds, less is better"
    parts, y = [text(12, 24, title, 15, weight="bold")], 36
    for name, rows in groups:
        y += 24
        parts.append(text(12, y, f"{name}: {INPUTS[name][1]}", weight="bold"))
        y += 8
        for contender, row in rows:
            parts += bar(y, contender, row["wall"], scale)
            y += BAR + GAP
    height = y + 16
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">')
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""])
