"""Switch every dimension off in turn, and know each effect: `measure` holds the loop, `finding` what it says.

`units` says what is switched off, `schedule` what to measure next, `runner` how many ablations share a batch, `estimate`,
`levels` and `bulk` how surely an effect is known, `ray_engine` how several machines share the work.
"""
