# The course in a container:
#
#   docker build -t d2lpar .
#   docker run --rm --init -p 127.0.0.1:8888:8888 -v d2lpar:/home/learner d2lpar
#
# Open the address that it prints. The volume called d2lpar keeps what you write.
# This torch is for the CPU. For GPUs, build with
# --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 and run with
# --gpus all --shm-size 1g.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS wheel
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:${PYTHON}-slim
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$TORCH"
COPY --from=wheel /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(echo /wheels/*.whl)[lab]"
RUN pip install --no-cache-dir --no-deps d2l==1.0.3
RUN useradd --create-home --uid 1000 learner
USER learner
WORKDIR /home/learner
EXPOSE 8888
CMD ["d2lpar", "lab", "--ip=0.0.0.0", "--no-browser"]
