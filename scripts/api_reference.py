#!/usr/bin/env python3
"""The reference in docs/api.md, made from the comments of include/deltarelay/deltarelay.h and stages.h.

scripts/api_reference.py              prints it
scripts/api_reference.py --check      says whether the document holds it
scripts/api_reference.py --update     writes it into the document

What the header has to look like: sections begin with a line of dashes; a comment right before a declaration, or behind
it on its line, describes it; a comment between the fields of a structure describes those that follow.
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = [ROOT / "include" / "deltarelay" / name for name in ("deltarelay.h", "stages.h")]
DOCUMENT = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- api reference -->\n", "<!-- end of api reference -->"
TOKEN = re.compile(r"/\*.*?\*/|[{};,]|[^/{};,]+|/", re.DOTALL)
SECTION = re.compile(r"^---- (.*?) -+$")
FIELD_OF = re.compile(r"(dr_\w+\.\w+)")


@dataclasses.dataclass
class Item:
    """A declaration, an entry of an enumeration or a field of a structure; a comment that stands alone has no text."""

    text: str
    before: str = ""  # the comment ahead of it, as it stands
    behind: str = ""  # the comment behind it on its line, in one line
    inside: list["Item"] = dataclasses.field(default_factory=list)
    title: str = ""  # a comment right behind the opening brace, in one line
    alone: bool = True  # an empty line or a comment is between it and the declaration before


def words(comment: str) -> str:
    """The text of a comment without its marks, its line breaks kept."""
    lines = re.sub(r"^/\*|\*/$", "", comment).split("\n")
    return "\n".join(re.sub(r"^\s*\* ?", "", line) if i else line.strip() for i, line in enumerate(lines)).strip()


def joined(comment: str) -> str:
    return re.sub(r"\s+", " ", words(comment))


def paragraphs(comment: str) -> list[str]:
    """Its paragraphs, each in one line, with empty lines between."""
    parts = [re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", words(comment))]
    return [line for part in parts if part for line in (escaped(sentence(part)), "")]


def parse(text: str) -> list[Item]:
    """The declarations of a header and the comments that stand alone, in order."""
    text = re.sub(r"^[ \t]*#.*(\\\n.*)*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern "C" \{|^\}$(?=\s*\Z)', "", text, flags=re.MULTILINE)
    items, _ = parse_body([match[0] for match in TOKEN.finditer(text)], 0, ";")
    return items


def parse_body(tokens: list[str], at: int, separator: str) -> tuple[list[Item], int]:
    """Items up to the closing brace, and where it is. `separator` ends an item: `;`, in enumerations `,`."""
    items: list[Item] = []
    text, before, inside, title, gap = "", "", [], "", ""
    ended = False  # an item has just ended, and no line with it

    def finish() -> None:
        nonlocal text, before, inside, title, gap
        if re.sub(r"\s+", " ", text).strip():
            alone = bool(before) or "\n\n" in gap
            items.append(Item(re.sub(r"\s+", " ", text).strip(), before, "", inside, title, alone))
        text, before, inside, title, gap = "", "", [], "", ""

    while at < len(tokens):
        token = tokens[at]
        if token.startswith("/*"):
            if ended and "\n" not in text and items:
                items[-1].behind = joined(token)
            elif text.strip() and separator == ",":  # behind the last entry, which no comma ends
                finish()
                items[-1].behind = joined(token)
            else:
                if before:
                    items.append(Item("", before))
                before = token
                text = ""
        elif token == "{":
            opened = at + 1
            while opened < len(tokens) and not tokens[opened].strip() and "\n" not in tokens[opened]:
                opened += 1
            if opened < len(tokens) and tokens[opened].startswith("/*"):
                title = joined(tokens[opened])
                at = opened
            inside, at = parse_body(tokens, at + 1, "," if re.search(r"\benum\b", text) else ";")
            text += " {}"
            if re.search(r"\)\s*\{\}$", text):  # the body of an inline function
                inside = []
                finish()
                ended = True
        elif token == "}":
            finish()
            return items, at
        elif token == separator:
            finish()
            ended = True
            at += 1
            continue
        else:
            if ended and "\n" in token:
                ended = False
            if not text.strip():
                gap += token
                if "\n\n" in token and before:
                    items.append(Item("", before))
                    before = ""
            text += token
        at += 1
    finish()
    if before:
        items.append(Item("", before))
    return items, at


def escaped(text: str) -> str:
    """Bars end a cell, and stars, underscores and angles would be marks."""
    text = re.sub(r"\b(?:dr|DR)_\w+(?:\.\w+)?\*?", lambda match: f"`{match[0]}`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
        for part in parts
    )


def sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) or not text else ".")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def common_prefix(names: list[str]) -> str:
    first, last = min(names), max(names)
    return next((first[:i] for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first)


def of_enum(item: Item, named: str) -> list[str]:
    """`named`: what the declaration before it names, for an enumeration that names nothing itself."""
    names = [re.match(r"\w+", entry.text)[0] for entry in item.inside if entry.text]
    prefix = common_prefix(names).rpartition("_")[0]
    field = FIELD_OF.match(item.title) or FIELD_OF.match(joined(item.before))
    about = []
    if field:
        heading = field[1]
        rest = field.string[field.end() :].lstrip(":; ")
        about = [escaped(sentence(rest)), ""] if rest else []
    elif item.title:
        heading, _, rest = item.title.partition(";")
        about = [escaped(sentence(rest)), ""] if rest else []
    else:
        heading = f"{prefix}_..." if len(prefix) > 2 else named
    if item.before and not (field and field.string == joined(item.before)):
        about += paragraphs(item.before)
    rows, value = [], -1
    for entry in (entry for entry in item.inside if entry.text):
        name, _, given = entry.text.partition("=")
        value = int(given) if given.strip() else value + 1
        meaning = " ".join(filter(None, [joined(entry.before), entry.behind]))
        rows.append((f"`{name.strip()}`", str(value), escaped(meaning)))
    return [f"#### {heading.strip()}", "", *about, *table(("name", "value", "meaning"), rows)]


def of_struct(item: Item) -> list[str]:
    name = re.search(r"\{\} (\w+)", item.text)[1]
    rows = []
    for field in item.inside:
        if field.before:  # of the fields that follow: a row of its own
            rows.append(("", "", escaped(joined(field.before))))
        if field.text:
            kind, names = re.match(r"(.*?[\s*])((?:\w+(?:\[\d+\])?(?:, )?)+)$", field.text).groups()
            cell = ", ".join(f"`{each.strip()}`" for each in names.split(","))
            rows.append((cell, f"`{kind.strip()}`", escaped(field.behind)))
    return [f"#### {name}", "", *paragraphs(item.before), *table(("field", "type", "meaning"), rows)]


def declaration(text: str) -> str:
    return re.sub(r"^(DR_API|static inline) ", "", text).replace(" {}", "").rstrip(";") + ";"


def of_functions(items: list[Item]) -> list[str]:
    """Functions and types of functions that stand under one comment share its words."""
    names = [re.search(r"(\w+)\)?\(", item.text)[1] for item in items]
    lines = [f"#### {', '.join(names)}", "", "```c", *(declaration(item.text) for item in items), "```", ""]
    lines += paragraphs(items[0].before)
    for name, item in zip(names, items, strict=True):
        if item.behind:
            lines += [f"`{name}`: {escaped(item.behind)}.", ""]
    return lines


def of_opaque(items: list[Item]) -> list[str]:
    names = [item.text.split()[-1] for item in items]
    lines = [f"#### {', '.join(names)}", "", *paragraphs(items[0].before)]
    rows = [(f"`{name}`", escaped(item.behind)) for name, item in zip(names, items, strict=True) if item.behind]
    return lines + (table(("structure", "meaning"), rows) if rows else [])


def introduction(comment: str) -> list[str]:
    """The comment at the head of the file: prose, indented blocks as code, dashes as a list."""
    lines, code = [], False
    for line in words(comment).split("\n"):
        in_list = bool(lines) and lines[-1].startswith("- ")
        indented = line.startswith("    ") and not in_list
        if indented != code and (indented or line.strip()):
            lines += ["```c" if indented else "```"]
            code = indented
        bullet = re.match(r"  - (.*)", line)
        if code:
            lines.append(line[4:])
        elif bullet:
            lines.append(f"- {bullet[1]}")
        elif lines and lines[-1].startswith("- ") and line.startswith("    "):
            lines[-1] += " " + line.strip()
        elif line.strip() == "Conventions":
            lines += ["### Conventions", ""]
        else:
            lines.append(line)
    text = "\n".join([*lines, "```"] if code else lines)
    return [re.sub(r"\n+```\n(?!c)", "\n```\n", re.sub(r"(\n\s*)+\n```\n", "\n```\n\n", text)), ""]


def group(items: list[Item]) -> list[list[Item]]:
    """Neighbours of one kind that stand under one comment."""
    groups: list[list[Item]] = []
    for item in items:
        if groups and not item.alone and kind_of(item) == kind_of(groups[-1][0]) in ("function", "opaque"):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def kind_of(item: Item) -> str:
    if not item.text:
        return "comment"
    if re.match(r"enum\b", item.text):
        return "enum"
    if re.match(r"typedef struct \w+ \{\}", item.text):
        return "struct"
    if re.match(r"typedef struct", item.text):
        return "opaque"
    return "function" if "(" in item.text else "other"


def reference(text: str) -> str:
    """Markdown of one header."""
    lines: list[str] = []
    items = parse(text)
    named = ""
    if items and not items[0].text:
        lines += introduction(items.pop(0).before)
    for together in group(items):
        first = together[0]
        kind = kind_of(first)
        if kind == "comment":
            section = SECTION.match(joined(first.before))
            lines += [f"### {sentence(section[1]).rstrip('.')}", ""] if section else paragraphs(first.before)
        elif kind == "enum":
            lines += of_enum(first, named)
        elif kind == "struct":
            lines += of_struct(first)
        elif kind == "opaque":
            lines += of_opaque(together)
        elif kind == "function":
            lines += of_functions(together)
        named = first.text.split()[-1] if kind == "other" else ""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in ("", "--check", "--update") or len(sys.argv) > 2:
        print(__doc__)
        return 2
    made = "\n".join(reference(header.read_text(encoding="utf-8")) for header in HEADERS)
    if what == "":
        print(made, end="")
        return 0
    before, mark, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    inside, end_mark, after = rest.partition(END)
    name = DOCUMENT.relative_to(ROOT)
    if not end_mark:
        print(f"{name}: expected the marks {BEGIN.strip()} and {END}, found none")
        return 1
    if what == "--update":
        DOCUMENT.write_text(before + mark + made + end_mark + after, encoding="utf-8")
        return 0
    if inside == made:
        print("api reference: in order")
        return 0
    print(f"{name}: its reference is not what the header says; scripts/api_reference.py --update writes it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
