#!/bin/sh
# Stands for a training script: so many iterations of a tenth of a second, told in the form that a run shows.
i=0
while [ "$i" -lt "$1" ]; do
    i=$((i + 1))
    sleep 0.1
    echo "PACELINE_STATUS {\"iteration\": $i, \"rate\": 10, \"path\": \"ring\"}"
done
echo "rank $RANK of $WORLD_SIZE on $PACELINE_SERVER: done"
