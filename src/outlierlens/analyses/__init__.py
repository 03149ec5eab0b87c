"""One file per analysis, top to bottom: options, rows, finding with its sentences, measure, run."""
