#!/bin/sh
# Makes what a first `up` lacks, once: secrets, as files that only the services' user reads. Each folder
# is a volume, for those who need all of it and nobody else.
#
#   /secrets   for the services: the store's password and address, the token that they show each other
#   /plugin    for reward and the plugin: the plugin's token
#   /redis     for Redis: its configuration, with the password
#   /clients   for the manager: who may submit runs; and the token of the client who submits one here
#   /scrape    for Prometheus: its token, an operator's, as the manager's own numbers are for operators
set -eu
umask 077

new_secret() {
  [ -s "$1" ] || python -c 'import secrets; print(secrets.token_hex(32))' > "$1"
}

# new_client NAME ROLE FILE: one whose token is lost gets another. The token comes last: where this was
# interrupted, there is none, and the next `up` makes both anew.
new_client() {
  [ ! -s "$3" ] || return 0
  touch /clients/clients.yaml
  sed -i "/name: \"$1\",/d" /clients/clients.yaml
  trimaran token new --owner demo --role "$2" --name "$1" > /tmp/token 2> /tmp/line
  grep -- '- {' /tmp/line >> /clients/clients.yaml
  cp /tmp/token "$3.new"
  mv "$3.new" "$3"
}

new_secret /secrets/token
new_secret /secrets/redis-password
new_secret /plugin/token
echo 'redis://redis:6379/0?password_file=/secrets/redis-password' > /secrets/store
# Nothing that was acknowledged is lost: the manager refuses a server that keeps less.
cat > /redis/redis.conf <<CONF
requirepass $(cat /secrets/redis-password)
dir /data
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
maxmemory-policy noeviction
CONF
new_client demo submitter /clients/demo.token
new_client prometheus operator /scrape/token
