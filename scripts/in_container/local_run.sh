# Runs a job in its folder, in the background. run.sh of a folder that plan --output wrote reads
# this, and has set action, reads, new (begin.sh), `job` (where the folder has to be), outputs,
# program and exports (NAME=VALUE).
set -eo pipefail
programs=${BASH_SOURCE[0]%/*}
case $programs in /*) ;; *) programs=$PWD/$programs ;; esac
cd "$(dirname "$0")"
if [ "$(pwd -P)" != "$(realpath -m "$job")" ]; then
  echo "expected this folder at $job" >&2; exit 2
fi
[ ! -e run.id ] || { echo "it ran here already: see log.txt" >&2; exit 2; }
. "$programs/begin.sh"
mkdir -p "${outputs[@]}"
export "${exports[@]}" "COSMOS_REASON_JOB_ID=$id"
echo "$id" >run.id
date +%s >run.started
nohup setsid sh -c '"$@" >>log.txt 2>&1; echo "$? $(date +%s)" >run.exit' sh \
  "${program[@]}" </dev/null >/dev/null 2>&1 &
echo "started; follow it with: tail -f $job/log.txt"
