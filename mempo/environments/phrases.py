"""Finding and cutting phrases in encyclopedic text: what a person would note from a passage."""

from __future__ import annotations

import re
import unicodedata

_SMALL_WORDS = (
    "a|an|and|are|as|at|be|by|did|do|does|for|from|had|has|have|he|her|his|how|in|into|is|it|its|"
    "of|on|or|s|that|the|their|them|these|they|this|those|to|was|were|what|when|where|which|who|"
    "whom|whose|why|with"
)
_STOP = frozenset(_SMALL_WORDS.split("|"))
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Jr|Sr|St|Dr|Mr|Mrs|Ms|No|vs|c|ca|Inc|Lt|Col|Gen|Jan|Feb|Aug|Sept?|Oct|Nov|Dec))\.$"
)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-ZÀ-ÖØ-Þ0-9])")
_CAPITAL = r"[A-ZÀ-ÖØ-Þ][\w'\u2019.\-]*\w"
_NAME = re.compile(
    rf"{_CAPITAL}(?:\s+(?:(?:of|the|de|von|van|der|la|le|du|da|di|del|al|and|&)\s+){{0,2}}"
    rf"(?:{_CAPITAL}|\d+))*"
)


def fold(text: str) -> tuple[str, list[int]]:
    """`text` in lower case without accents and punctuation, words one blank apart.

    Returns the folded text and, for each of its characters, its position in `text`.
    """
    characters, positions = [" "], [0]
    for position, character in enumerate(text):
        for piece in unicodedata.normalize("NFKD", character).lower():
            if unicodedata.combining(piece):
                continue
            if piece.isalnum():
                characters.append(piece)
            elif characters[-1] != " ":
                characters.append(" ")
            else:
                continue
            positions.append(position)
    if characters[-1] != " ":
        characters.append(" ")
        positions.append(len(text))
    return "".join(characters), positions


def find(text: str, phrase: str) -> tuple[int, int] | None:
    """[start, end) of the first place where `phrase` stands in `text` as whole words.

    Case, accents and punctuation do not count; a bracket that was opened is closed. None where
    the phrase is not there or empty.
    """
    folded, positions = fold(text)
    sought = fold(phrase)[0]
    at = folded.find(sought) if sought.strip() else -1
    if at < 0:
        return None
    start, end = positions[at + 1], positions[at + len(sought) - 2] + 1
    if text[start:end].count("(") > text[start:end].count(")") and text[end : end + 1] == ")":
        end += 1
    return start, end


def bare(title: str) -> str:
    """A title without what only tells it from its namesakes: `Get Low (song)` -> `Get Low`."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", title).strip() or title


def sentences(text: str) -> list[str]:
    """The sentences of `text`; abbreviations and initials do not end one."""
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text[start : match.start() + 1]):
            found.append(text[start : match.end()].strip())
            start = match.end()
    return [*found, text[start:].strip()] if text[start:].strip() else found


def names(text: str) -> list[str]:
    """Capitalised names in `text`, the longest first, each once."""
    found = dict.fromkeys(
        name for name in _NAME.findall(text) if fold(name)[0].strip() not in _STOP
    )
    return sorted(found, key=lambda name: -len(name.split()))


def content_words(text: str) -> list[str]:
    """The words of `text` that carry meaning, as written there, in order, each once."""
    words = (word.strip(".,;:!?\"'()[]") for word in re.sub(r"['\u2019]s\b", "", text).split())
    return list(dict.fromkeys(word for word in words if word and word.lower() not in _STOP))


def note(title: str, text: str, phrase: str = "", *, about: str = "", max_words: int = 24) -> str:
    """A short note of what a passage says about `phrase`: its sentence, cut behind the phrase.

    Of several sentences with the phrase, the one that shares most words with `about` is taken.
    Without a phrase, or where the text does not have it, the note is the first sentence, cut.
    The title goes in front where the note does not name it, so that it stands alone.
    """
    said = sentences(text) or [title]
    holding = [sentence for sentence in said if find(sentence, phrase)]
    if not holding and find(text, phrase):  # a full stop inside the phrase: "Dec. 10"
        holding = [text]
    wanted = content_words(about)
    sentence = max(holding, key=lambda s: sum(find(s, w) is not None for w in wanted), default="")
    if not sentence:
        cut = _clause(said[0], max_words)
    else:
        cut = _up_to(sentence, phrase, max_words)
        known = set(fold(f"{title} {phrase}")[0].split()) | _STOP
        if set(fold(cut)[0].split()) <= known:  # the phrase is all that it would say
            longer = _clause(sentence, max(max_words - 8, len(cut.split()) + 8))
            cut = longer if find(longer, phrase) else cut
    cut = _trim(cut)
    names_itself = find(cut, bare(title)) or _starts_with_part_of(cut, title)
    return cut if names_itself else f"{title}: {cut}"


def _trim(cut: str) -> str:
    """Without loose ends: open brackets, quotes and punctuation."""
    cut = cut.rstrip(" ,;:.([\u2013-")
    cut += ")" * max(0, cut.count("(") - cut.count(")"))
    return cut.replace('"', "") if cut.count('"') % 2 else cut


def _starts_with_part_of(sentence: str, title: str) -> bool:
    """Whether the first words are the title's, as `Gordon Meredith Lightfoot` for Lightfoot."""
    if sentence.startswith("..."):
        return False
    first = fold(" ".join(sentence.split()[:6]))[0].split()
    wanted = [word for word in fold(bare(title))[0].split() if word not in _STOP]
    return bool(wanted) and sum(word in first for word in wanted) * 2 >= len(wanted)


def _up_to(sentence: str, phrase: str, max_words: int) -> str:
    """The sentence up to the end of `phrase`; where that is long, without what can be spared.

    First brackets go, then the clauses in front of the phrase's own.
    """
    for shorter in (sentence, re.sub(r"\s*\([^()]*\)", "", sentence)):
        place = find(shorter, phrase)
        if place is None:  # the phrase stood in the brackets
            break
        sentence = shorter
        if len(sentence[: place[1]].split()) <= max_words:
            return sentence[: place[1]] + _rest_of_noun(sentence, *place)
    start, end = find(sentence, phrase) or (0, len(sentence))
    kept = sentence[:end]
    for boundary in re.finditer(r"(?:[,;:]|\b(?:and|who|which|where|when|that))\s+", kept[:start]):
        if len(kept[boundary.end() :].split()) <= max_words:
            return "... " + kept[boundary.end() :]
    words = max(max_words, len(sentence[start:end].split()))
    return "... " + " ".join(kept.split()[-words:])


def _rest_of_noun(sentence: str, start: int, end: int) -> str:
    """What must follow a phrase that only qualifies a noun: `an American` -> ` film director`."""
    article = re.search(
        r"\b(?:a|an|the)\s+(?:(?!(?:of|by|in|and)\b)[\w-]+\s+){0,2}$", sentence[:start]
    )
    after = re.match(rf"(?:\s(?!(?:{_SMALL_WORDS})\b)[a-z][\w-]*){{1,3}}", sentence[end:])
    return after.group() if article and after else ""


def _clause(sentence: str, max_words: int) -> str:
    """At most `max_words` words of the sentence, up to the end of a clause where there is one."""
    words = sentence.split()
    if len(words) <= max_words:
        return sentence
    words = words[:max_words]
    while len(words) > 1 and words[-1].lower().strip(",;:") in _STOP:
        words.pop()
    cut = " ".join(words)
    boundary = max((m.start() for m in re.finditer(r"[,;]\s", cut)), default=0)
    depth = cut[:boundary].count("(") - cut[:boundary].count(")")
    return cut[:boundary] if boundary > len(cut) // 2 and depth == 0 else cut
