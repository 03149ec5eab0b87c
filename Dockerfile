# docker build -t outlierlens .
# docker run --rm -v "$PWD/runs:/work/runs" -v outlierlens:/cache outlierlens report mini-planted
# docker run --rm --network host outlierlens explore mini-planted      (Linux: the page is served to this machine alone)
#
# PyTorch is the CPU build; for the CUDA build: --build-arg TORCH_INDEX=https://pypi.org/simple
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)"
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt '.[models,explore]'
RUN useradd --create-home user && mkdir -p /work/runs /cache && chown -R user /work /cache
USER user
WORKDIR /work
ENV OUTLIERLENS_CACHE=/cache HF_HOME=/cache/huggingface
ENTRYPOINT ["outlierlens"]
CMD ["--help"]
