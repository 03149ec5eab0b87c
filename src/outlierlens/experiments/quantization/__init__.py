"""Rounding to few bits: what it costs, where the error lies, and whether keeping the outlier dimensions gives it back.

    found = quantize(loaded, read_texts("test.parquet", limit=32), QuantizeOptions())            # quantization.run
    print(found.verdict)
    with rounded(loaded, parse("int8-tensor/int8-tensor"), Keeping(dims=(507,))):                # quantization.apply
        loaded.model(**batch)

`schemes` says what is rounded how, `rounding` rounds tensors, `places` finds the linears and what they read and write,
`calibration` reads their inputs, `apply` rounds a running model, `local_error` and `layer_error` say where the error lies,
`run` measures all of it.
"""
