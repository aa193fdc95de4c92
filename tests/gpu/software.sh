#!/usr/bin/env bash
# Other versions of the libraries than the pinned ones, without a GPU: tests/gpu/software.sh FOLDER KIND [PART...]
#   gpu         the software of a GPU machine: Python 3.12, torch's CUDA build, transformers and the like at that machine's
#               versions; in FOLDER/site, on PYTHONPATH, the wheels that such a machine lacks; the project is not installed
#   lowest      Python 3.11 and the lowest versions that pyproject.toml admits, of the extras that tests need too
#   python3.13  Python 3.13 and the versions of constraints.txt
#   newest      Python 3.13 and the newest versions of the package index
# FOLDER becomes the environment (FOLDER/bin/python), 5 to 7 GB: torch is the package index's CUDA build. Parts, in this order
# if none is named: `build`, which does nothing where the environment is; folders or files of tests, each run by a pytest of
# its own without the nightly ones (default: each folder of tests and each file beside them); evidence-PART, a
# part of evidence.sh on the CPU (only with gpu). What each printed is in FOLDER/results; the last lines are a summary.
# UV: the uv that resolves and installs (default: one that is installed into FOLDER/uv). Exit code: 1 if any part failed.
set -uo pipefail
folder=${1:-} kind=${2:-}
[[ -n $folder && $kind =~ ^(gpu|lowest|python3\.13|newest)$ ]] || { sed -n '2,13s/^# //p' "$0" >&2; exit 2; }
shift 2
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder/results" && folder=$(cd "$folder" && pwd) || exit 1
python=$folder/bin/python

case $kind in gpu) version=3.12 ;; lowest) version=3.11 ;; *) version=3.13 ;; esac

# Of the GPU machine: its versions, and what else it has, at the pinned versions as far as these allow them.
machine="torch==2.11.0 triton==3.6.0 transformers==5.17.0 accelerate==1.15.0 huggingface_hub==1.33.0 numpy==2.5.2
    peft pandas scipy rich typer psutil pyarrow pytest nvidia-ml-py jinja2 cloudpickle threadpoolctl PyYAML httpx xxhash"
# What it lacks, at the pinned versions.
wheels="optuna alembic sqlalchemy mako colorlog greenlet datasets dill multiprocess pydantic pydantic-core annotated-types
    cloudpickle pillow typing-extensions typing-inspection ruamel.yaml platformdirs filelock liger-kernel bitsandbytes"
# Extras that libraries of the user's are behind, whose lowest versions are promised too.
extras="peft torchao service postgres tensorboard wandb mlflow"

compile() { # OUTPUT ARGUMENTS...: of several versions that are admitted the pinned one is taken
    cp "$here/constraints.txt" "$1"
    "$UV" pip compile --quiet --no-annotate --no-header --python-version "$version" --output-file "$@"
}
install() { # ARGUMENTS...
    "$UV" pip install --quiet --no-deps --compile-bytecode --python "$python" "$@"
}
tools() { # HAS...: what tests need beside the project, into missing.txt; what those lists name stays as it is, torch's CUDA too
    compile tools.txt "$here/pyproject.toml" --extra dev
    grep -vixE "$(sed 's/[<>=].*//; s/$/==.*/' "$@" | paste -sd '|')|(cuda|nvidia)-.*" tools.txt > missing.txt
}
build() (
    set -e
    interpreter=$(command -v "python$version" | grep -v /shims/ || echo "$(pyenv prefix "$(pyenv latest "$version")")/bin/python")
    "$interpreter" -m venv "$folder"
    if [ -z "${UV:-}" ]; then
        python3 -m venv "$folder/uv" && "$folder/uv/bin/python" -m pip install --quiet uv && UV=$folder/uv/bin/uv
    fi
    cd "$folder"
    case $kind in
    gpu)
        tr -s ' \n' '\n' <<< "$machine" > machine.in
        compile machine.txt machine.in
        install -r machine.txt
        tr -s ' \n' '\n' <<< "$wheels" > wheels.in
        install --target site --constraint "$here/constraints.txt" -r wheels.in
        # What only tests need is apart, out of evidence.sh's sight.
        tools machine.txt wheels.in
        install --target tools -r missing.txt
        # Tests replace PYTHONPATH, and the service's searches inherit few variables.
        printf '%s\nimport os, sys; sys.path.extend(os.environ.get("SOFTWARE_OF_TESTS", "").split())\n' "$folder/site" \
            > "lib/python$version/site-packages/software.pth"
        ;;
    lowest)
        lowest=()
        for extra in $extras; do lowest+=(--extra "$extra"); done
        rm -f lowest.txt # else its versions are preferred
        "$UV" pip compile --quiet --no-annotate --no-header --python-version "$version" --resolution lowest-direct \
            "${lowest[@]}" "$here/pyproject.toml" --output-file lowest.txt
        install -r lowest.txt
        tools lowest.txt
        install -r missing.txt
        ;;
    newest)
        rm -f newest.txt # else its versions are preferred
        "$UV" pip compile --quiet --no-annotate --no-header --python-version "$version" "$here/pyproject.toml" --extra dev \
            --output-file newest.txt
        install -r newest.txt
        ;;
    *)
        compile requirements.txt "$here/pyproject.toml" --extra dev --constraint "$here/constraints.txt"
        install -r requirements.txt
        ;;
    esac
    touch "$folder/built"
)
run() { # NAME COMMAND...
    local name=$1 code
    shift
    "$@" > "$folder/results/$name.txt" 2>&1
    code=$?
    [ $code != 5 ] || code=0 # pytest's: no test is left without the nightly ones
    [ $code = 0 ] || failed=1
    printf '%-20s exit %s  %s\n' "$name" "$code" "$(tail -n 1 "$folder/results/$name.txt")"
}

[ $# != 0 ] || {
    parts=$(cd "$here" && git ls-files 'tests/**/test_*.py' 'tests/test_*.py' | grep -v ^tests/gpu/ |
        sed -E 's,^(tests/[^/]+)/.*,\1,' | sort -u)
    set -- build $parts
    [ "$kind" != gpu ] || set -- "$@" $(sed -n 's/^#   \([0-9][a-z]*\)  .*/evidence-\1/p' "$here/tests/gpu/evidence.sh")
}
failed=0
[ -f "$folder/built" ] || build || { echo "the environment could not be built" >&2; exit 1; }
site=$([ "$kind" != gpu ] || echo "$folder/site:")
# What old libraries do with newer ones, call what is deprecated and leave files open, is no fault of ours.
warnings=$([ "$kind" != lowest ] ||
    echo "-W default::DeprecationWarning -W default::ResourceWarning -W default::pytest.PytestUnraisableExceptionWarning")
export HF_HUB_OFFLINE=1
cd "$here" || exit 1
for part; do
    case $part in
    build) ;;
    evidence-*)
        PYTHONPATH=$site$here DEVICE=cpu PYTHON=$python WORK=$folder/evidence \
            run "$part" tests/gpu/evidence.sh "${part#evidence-}" "$folder/results"
        ;;
    *)
        name=${part#tests/}
        PYTHONPATH=$here SOFTWARE_OF_TESTS=${site:+"$folder/tools"} \
            run "${name//\//-}" "$python" -m pytest -q $warnings -p no:cacheprovider -m "not nightly" "$part"
        ;;
    esac
done
exit $failed
