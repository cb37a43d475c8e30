# cart-serve at its limits: ended under load, more clients than places, more bytes than room. What it answers otherwise is
# in cart-serve.bats.
load ../helper/common
load ../helper/serve

setup() {
    cart_setup
    cart_need_tool curl jq python3
    cart_tiny qwen3
    SERVE_PID=
}

teardown() {
    serve_kill
}

# clients SCRIPT: Python with the server's address, its process id, and ask(METHOD, PATH, BODY) -> (status, body) at hand.
clients() {
    cat > clients.py <<'PY'
import http.client, json, os, signal, socket, sys, threading, time
address, server = ("127.0.0.1", int(sys.argv[1])), int(sys.argv[2])
def ask(method, path, body=None):
    c = http.client.HTTPConnection(*address, timeout=60)
    c.request(method, path, json.dumps(body) if body is not None else None)
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data
PY
    cat >> clients.py
    python3 clients.py "${SERVE_URL##*:}" "$SERVE_PID"
}

@test "TERM under load ends with status 0, whatever is about to wait" {
    local round client
    for round in 1 2 3 4; do
        serve_start -j 1 --slots 2 --ctx 128 --drain-timeout 0
        clients <<'PY' &
body = b'{"content":"' + b'ab ' * 60000 + b'"}'
raw = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
end = time.time() + 30
def load():
    while time.time() < end:
        try:
            s = socket.create_connection(address)
        except OSError:
            return
        try:
            s.settimeout(2)
            while time.time() < end:
                s.sendall(raw)
                if not s.recv(65536):
                    break
        except OSError:
            pass
threads = [threading.Thread(target=load) for _ in range(24)]
for t in threads: t.start()
for t in threads: t.join()
PY
        client=$!
        sleep 0.7
        serve_end
        wait "$client"
    done
}
