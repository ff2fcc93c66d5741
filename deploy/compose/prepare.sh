#!/bin/sh
# Makes what a first `up` lacks, once: secrets, as files that only the services' user reads.
#
#   /secrets   for the services: the store's password and address, the token that they show each other,
#              the plugin's token
#   /clients   for the manager: who may submit runs; and the tokens of the two clients that are here
set -eu
umask 077

new_secret() {
  [ -s "$1" ] || python -c 'import secrets; print(secrets.token_hex(32))' > "$1"
}

# new_client NAME ROLE
new_client() {
  [ ! -s "/clients/$1.token" ] || return 0
  trimaran token new --owner demo --role "$2" --name "$1" > "/clients/$1.token" 2> /tmp/line
  grep -- '- {' /tmp/line >> /clients/clients.yaml
}

new_secret /secrets/token
new_secret /secrets/redis-password
new_secret /secrets/plugin-token
echo 'redis://redis:6379/0?password_file=/secrets/redis-password' > /secrets/store
# Nothing that was acknowledged is lost: the manager refuses a server that keeps less.
cat > /secrets/redis.conf <<CONF
requirepass $(cat /secrets/redis-password)
dir /data
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
maxmemory-policy noeviction
CONF
new_client demo submitter
new_client prometheus viewer
