"""`count`: how often every token of a tokenizer occurs in a corpus, and counts of several corpora in one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from outlierlens.cli.common import resumable
from outlierlens.cli.experiment import print_sections
from outlierlens.data.token_counts import TokenCounts, open_counts, read_counts, write_counts
from outlierlens.errors import BadInput, literal
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.count.measure import STATE, count_tokens, discard, parts_of
from outlierlens.experiments.count.options import CountCall
from outlierlens.models.load import load_tokenizer
from outlierlens.session import Session


def run(session: Session, options: CountCall) -> None:
    """Count or add up, write the counts, and say what they are."""
    asked = session.output
    assert asked.output is not None  # its row asks for one
    found = (_merged if options.merge else _counted)(session, options, asked.output)
    if asked.json:
        print(literal({"output": str(asked.output), **_about(found)}, indent=2))
    elif not asked.quiet:
        print_sections(BY_NAME["count"], found, verbose=asked.verbose, where=str(asked.output))


def _tokenizer(session: Session) -> Any:
    """That of --tokenizer; None where it is not given."""
    named = session.load.tokenizer
    return None if named is None else load_tokenizer(named, replace(session.load, tokenizer=None))


def _merged(session: Session, options: CountCall, output: Path) -> TokenCounts:
    tokenizer = _tokenizer(session)
    names = options.merge or ""
    found = open_counts(names) if tokenizer is None else read_counts(names, tokenizer)
    write_counts(found, output)
    return found


def _counted(session: Session, options: CountCall, output: Path) -> TokenCounts:
    tokenizer, read, asked = _tokenizer(session), session.reading, session.output
    if tokenizer is None:
        raise BadInput("whose tokens are counted? name a model with --tokenizer: a sample, a directory or a hub id")
    if asked.overwrite:
        discard(parts_of(output))
    with resumable(parts_of(output) / STATE):

        def tell(source: str, done: int, total: int, n_texts: int, n_tokens: int) -> None:
            session.progress(f"{source}: {n_texts:,} texts, {n_tokens:,} tokens so far", done, total)

        how = replace(
            options.counted,
            text_column=read.text_column,
            limit=read.limit,
            offline=session.loading.offline,
            progress=tell,
        )
        return count_tokens(tokenizer, options.data, how, output=output)


def _about(found: TokenCounts) -> dict[str, Any]:
    return {
        "source": found.source,
        "n_texts": found.n_texts,
        "n_tokens": found.n_tokens,
        "n_special": int(found.special.sum()),
        "n_types": found.n_types,
        "n_vocabulary": len(found.tokens),
        "notes": list(found.notes),
    }
