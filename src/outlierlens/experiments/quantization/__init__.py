"""Rounding to few bits: what it costs, where the error lies, and whether keeping the outlier dimensions gives it back.

    found = quantize(loaded, read_texts("test.parquet", limit=32), QuantizeOptions())            # quantization.measure
    print(found.verdict)
    with rounded(loaded, parse("int8-tensor/int8-tensor"), Keeping(dims=(507,))):                # quantization.apply
        loaded.model(**batch)

`schemes` says what is rounded how and rounds tensors, `places` finds the linears, what they read and write and how large it is,
`apply` rounds a running model, `rounding_error` says where the error lies, `noise` what the last bit does, `measure` measures
all of it.
"""
