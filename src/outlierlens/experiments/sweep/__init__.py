"""The sweep: every dimension (set, layer window) switched off in turn, on as many texts as each needs.

    from outlierlens.experiments.sweep.measure import sweep            # the core loop; outlierlens.sweep is the same

`units` says what is switched off, `schedule` what to measure next, `runner` how many ablations share a batch, `engines` where
it runs, `estimate` how surely an effect is known, `nulls` and `summary` what the result says.
"""
