"""Terms of a text and how much each says about its subject, by statistics alone: no list of words of any language."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\uff66-\uff9f"
_HIRAGANA = "\u3041-\u309f"
#: Scripts other than Chinese and Japanese that are written without spaces: Thai, Lao, Burmese, Khmer.
_OTHER_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSPACED = _HAN + _KATAKANA + _HIRAGANA + _OTHER_UNSPACED
#: Signs that belong to the letter before them but are not letters themselves.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff"
_LETTERS = rf"(?:[^\W{_UNSPACED}]|[{_MARKS}])+"
_TOKEN = re.compile(
    rf"(?P<word>{_LETTERS}(?:[-'’·]{_LETTERS})*|[{_KATAKANA}]{{2,}})|(?P<run>[{_HAN}{_OTHER_UNSPACED}]{{2,}})"
)
