# The image of Dockerfile with DeepMind Lab: for clusters whose actors play `--env dmlab:LEVEL`.
#
# DeepMind Lab is no package on PyPI. Its wheel has to be built for the image's Python and against NumPy 2, either as
# https://github.com/google-deepmind/lab documents (docs/users/build.md and python/pip_package; Python up to 3.11, for the
# package imports the module `imp`):
#   lab$ bazel build -c opt //python/pip_package:build_pip_package
#   lab$ ./bazel-bin/python/pip_package/build_pip_package HERE/docker
# or by PyPI's dmlab-gym, which needs Python 3.13 and builds in a container of its own:
#   pip install dmlab-gym && dmlab-gym build --no-install --output docker
# Then, with --build-arg PYTHON=3.13 in the first command after the second way:
#   docker build -f docker/Dockerfile -t compressive-impala .
#   docker build -f docker/dmlab.Dockerfile -t compressive-impala-dmlab .
# All nodes of a cluster need the same Python and the same Ray.
ARG IMAGE=compressive-impala
# hadolint ignore=DL3006
FROM ${IMAGE}

# The wheel, within this repository; --build-arg WHEEL=docker/NAME where docker/ has several.
ARG WHEEL=docker/*.whl

# What its software renderer and its hardware renderer draw with.
# hadolint ignore=DL3002
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libosmesa6 libegl1 libgl1 \
    && rm -rf /var/lib/apt/lists/*
COPY ${WHEEL} /app/
# six and pkg_resources, which setuptools had before 82, are what the package imports.
RUN pip install --no-cache-dir setuptools==81.0.0 six==1.17.0 \
    && pip install --no-cache-dir --no-deps /app/*.whl
USER 1000
RUN python -c 'import deepmind_lab'
