# Starts the container of a run. run.sh of a folder that plan --output wrote reads this, and has set
# action, reads, new (begin.sh), image, `offline` (where nothing can pull it), `flags` of docker
# run, `names` (variables that get the run's id), `outputs` outside of the job's folder, `skill`
# (where the programs lie), `program`, and `user` where that is not whoever starts it.
set -eo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
. "${BASH_SOURCE[0]%/*}/begin.sh"
if ! docker image inspect "$image" >/dev/null 2>&1; then
  if [ "$offline" ]; then
    echo "got no image $image here, expected it: docker save, then docker load" >&2; exit 2
  fi
  docker pull "$image"
fi
jobs=${COSMOS_REASON_JOBS:-jobs}
mkdir -p "$jobs"
job=$(cd "$jobs" && pwd -P)/$id
# A user that the image does not know has no home there: it is in the job's folder.
sed -n 's|^[A-Z_]*=/job/\(home.*\)|\1|p' "$here/skill/environment" |
  while read -r below; do mkdir -p "$job/$below"; done
[ ${#outputs[@]} = 0 ] || mkdir -p "${outputs[@]}"
grep -v '^#:schema ' "$here/spec.toml" >"$job/container.toml"
cp "$here/launch.json" "$job/"
echo "$id" >"$job/run.id"
# The container has this folder mounted: a plan must not write it anew meanwhile.
{ echo "$id" >>"$here/runs"; } 2>/dev/null || true

for name in "${names[@]}"; do flags+=(--env "$name=$id"); done
docker run --detach --name "$id" --label "tao-job=$id" --user "${user:-$(id -u):$(id -g)}" \
  --env-file "$here/skill/environment" --mount "type=bind,src=$job,target=/job" \
  --mount "type=bind,src=${skill:-$here/skill},target=/skill,readonly" \
  "${flags[@]}" "$image" "${program[@]}"
date +%s >"$job/run.started"
nohup setsid sh -c 'docker logs -f "$1" >"$2/log.txt" 2>&1
code=$(docker wait "$1") && echo "$code $(date +%s)" >"$2/run.exit"' sh "$id" "$job" \
  </dev/null >/dev/null 2>&1 &
echo "job $id is in $job; follow it with: tail -f $job/log.txt"
