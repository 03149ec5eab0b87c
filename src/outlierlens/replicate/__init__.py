"""A paper is data: what it did, its published numbers, and how it is repeated for any model.

`papers` is what each paper did and published, `data` where its data sets lie, `runner` how a paper of many parts is measured.
`glue` is the table of Kovaleva et al. (2021) and Puccetti et al. (2022); `luo` and `puccetti` are whole papers.
"""
