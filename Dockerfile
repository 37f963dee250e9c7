# Runs the demo:  docker build -t episode . && docker run --rm -v "$PWD/runs:/work/runs" episode
# Any other command:  docker run --rm -v "$PWD:/work" episode run examples/digits.toml
FROM python:3.11-slim
# An index of CPU builds of torch makes the image several GB smaller:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL
COPY . /source
RUN pip install --no-cache-dir -c /source/constraints.txt '/source[data,plot,tune]' && rm -r /source
RUN useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["episode"]
CMD ["demo"]
