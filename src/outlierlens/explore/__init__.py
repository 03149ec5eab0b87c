"""The live page: type a sentence, switch dimensions off, and see the model with random ones off beside it.

    explorer = open_explorer("mini-planted")                          # explore.look
    found = explorer.look(State(text="A film worth seeing.", dims=(8, 24)))
    found.loss("chosen").change
    serve(explorer, explorer.start())                                 # explore.serve: the page, on loopback only

`look` checks a state and measures its views, a `Finding`; `page` wires gradio around the report's templates; `serve` starts it.
"""
