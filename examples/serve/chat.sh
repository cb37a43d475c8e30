#!/bin/sh
# chat.sh [URL]: cart-serve with nothing but curl. URL defaults to http://127.0.0.1:8765.
set -eu
url=${1:-http://127.0.0.1:8765}

echo '== models'
curl -sf "$url/v1/models" | jq -r '.data[].id'

# A cartridge of the server, if it has one, stands in for the document that it was trained on.
cartridges=$(curl -sf "$url/v1/cartridges" | jq -c '[.data[0].id // empty]')

echo "== an answer behind $cartridges"
curl -sf "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "{
  \"cartridges\": $cartridges,
  \"messages\": [{\"role\": \"user\", \"content\": \"What is this about?\"}],
  \"max_tokens\": 64, \"temperature\": 0
}" | jq '{answer: .choices[0].message.content, cartridges, usage}'

echo '== a stream'
curl -sfN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "{
  \"cartridges\": $cartridges, \"stream\": true,
  \"messages\": [{\"role\": \"user\", \"content\": \"Say more.\"}],
  \"max_tokens\": 64, \"temperature\": 0
}" | sed -un 's/^data: {/{/p' | jq -j --unbuffered '.choices[0].delta.content // empty'
echo

echo '== a form that the answer must have'
curl -sf "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "{
  \"messages\": [{\"role\": \"user\", \"content\": \"Is the sky blue?\"}], \"max_tokens\": 64, \"temperature\": 0,
  \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"answer\", \"schema\": {
    \"type\": \"object\", \"properties\": {\"yes\": {\"type\": \"boolean\"}}, \"required\": [\"yes\"]}}}
}" | jq -r '.choices[0].message.content'
