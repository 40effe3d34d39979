# Sourced by the scripts beside it. `bare COMMAND...` runs a command of the README on a machine as bare as a stranger's:
# an empty home, an empty pip cache, no packages of the user's own, no variables but those listed here. What works only
# where it has worked before fails there. `report` ends the script: it fails if a command did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# All that is passed on: where programs and temporary files are, and what tells pip its index, certificates and proxy.
passed=()
for name in $(compgen -e); do
    case $name in
        PATH | LANG | TMPDIR | CI) passed+=("$name=${!name}") ;;
        PIP_* | SSL_* | REQUESTS_CA_BUNDLE | *_proxy | *_PROXY) passed+=("$name=${!name}") ;;
    esac
done

failed=()
bare() {
    echo "== $*"
    local home
    home=$(mktemp -d "$scratch/home.XXXXXX") || exit 1
    env -i "${passed[@]}" HOME="$home" PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 "$@" </dev/null || failed+=("$*")
}

report() {
    ((${#failed[@]} == 0)) && exit
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
}
