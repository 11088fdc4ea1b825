"""Text in a CSV file that spreadsheets would take for a formula."""

import contextlib
import re

# Of what spreadsheets compute, and what they strip before it; also full-width forms of the signs.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)


def safe(text: str) -> str:
    r"""Text as a spreadsheet shows it and computes nothing; `plain` is the inverse.

    What would be a formula gets an apostrophe, and so does what has one before a formula already.
    Numbers, such as -5, stay as they are.

    Example:
      >>> print(safe("=1+1"), safe("-5"), safe("a=b"))
      '=1+1 -5 a=b

    Source: OWASP, CSV Injection.
    """
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if _FORMULA.match(text) else text


def plain(text: str) -> str:
    """The text that `safe` made safe.

    Example:
      >>> print(plain("'=1+1"), plain("'a'"))
      =1+1 'a'
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
