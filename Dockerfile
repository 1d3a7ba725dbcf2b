# serve, evaluate, process, grade-server and all other commands: docs/sizing.md
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
WORKDIR /source

# The requirements change rarely, so this layer is reused.
COPY requirements.txt .
RUN pip install -r requirements.txt

COPY pyproject.toml README.md LICENSE MANIFEST.in ./
COPY reasoning_gym_environment reasoning_gym_environment
RUN pip install --no-deps .

# Not root: the program needs no rights, and grading gives up those that it has.
RUN useradd --create-home runner && mkdir -p /data/data_dumps && chown -R runner /data
USER runner
WORKDIR /data
ENTRYPOINT ["reasoning-gym-env"]
CMD ["--help"]
