# How a run of a folder that plan --output wrote begins, on every platform. The script of that
# folder reads this, and has set `action`, `reads` (paths that have to be here) and `new` (outputs
# that have to be empty: files of another run in them would be taken for those of this one). Sets
# `id`.
for path in "${reads[@]}"; do
  [ -e "$path" ] || { echo "got no $path on this machine, expected it there" >&2; exit 2; }
done
for path in "${new[@]}"; do
  [ -z "$(ls -A "$path" 2>/dev/null)" ] || {
    echo "got files in $path, expected a new output folder" >&2; exit 2
  }
done
id=$action-$(date -u +%Y%m%d-%H%M%S)-$(od -An -N3 -tx1 /dev/urandom | tr -d ' \n')
