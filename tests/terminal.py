"""Standard output as a terminal shows it."""

import io


class Terminal(io.StringIO):
    """What standard output is on a terminal: `rows` are its lines at the end."""

    def isatty(self):
        return True

    @property
    def rows(self):
        rows = []
        for line in self.getvalue().split("\n"):
            shown = ""
            for drawn in line.split("\r"):
                shown = drawn + shown[len(drawn) :]
            rows.append(shown.rstrip())
        return rows
