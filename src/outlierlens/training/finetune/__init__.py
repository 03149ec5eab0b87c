"""Fine-tune a model on a labelled task, reproducibly: several seeds, the best epoch of each kept, stopped runs continued.

    from outlierlens.data.labelled.examples import read_splits
    from outlierlens.training.finetune.loop import finetune
    from outlierlens.training.finetune.options import FinetuneSettings

    train, dev = read_splits(find_task("rte"), "rte/")
    tuned = finetune("minilm-l6", train, dev, Path("runs/minilm-l6-rte"), FinetuneSettings(), seeds=(42, 43))
    load_model(tuned.seeds[0].folder)

`options` imports neither torch nor transformers; `loop` does.
"""
