"""`protect`: what it finds is a text for another tool, so that text is what it prints or writes."""

from dataclasses import replace

from outlierlens.cli.common import say
from outlierlens.experiments.pruning.options import ProtectFor
from outlierlens.experiments.pruning.protect import protect
from outlierlens.results.safe_files import write_text
from outlierlens.session import Session
from outlierlens.view.words import number_of_layers


def run(session: Session, options: ProtectFor) -> None:
    """Print the list, or write it."""
    output = session.output
    scan = session.scanning(max_read=options.scan.max_read)
    made = protect(session.subject.model, options.tool, replace(options, scan=scan))
    if output.output is None:
        if not output.quiet:
            print(made.text, end="")
        return
    write_text(output.output, made.text)
    if not output.quiet:
        say(f"{output.output}: {len(made.modules)} modules of {number_of_layers(len(made.layers))}")
        for note in made.notes:
            say(f"note: {note}")
