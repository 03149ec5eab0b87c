"""How any finding is shown: sections of sentences, charts and tables, and the renderers of them."""
