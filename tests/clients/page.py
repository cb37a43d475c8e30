#!/usr/bin/env python3
"""page.py URL FOLDER: the page of a running server in headless Chromium, under its own policy: a conversation by keyboard
alone, a cartridge chosen, a stream stopped or forgotten, a message refused, on a phone's width and in the dark. Leaves
screenshots in FOLDER."""
import json
import os
import shutil
import sys
import time
import traceback

from playwright.sync_api import sync_playwright

URL, FOLDER = sys.argv[1], sys.argv[2]
tests = []


def test(f):
    tests.append(f)
    return f


def until(page, what):
    """Asks again and again; wait_for_function would, too, and the page's policy forbids it."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "waited too long"
        page.wait_for_timeout(20)


def answered(page, n):
    about = page.locator(".turn.assistant .about")
    until(page, lambda: about.count() == n and about.nth(n - 1).text_content() != "" and
          page.locator("#send").inner_text() == "Send")
    return about.nth(n - 1).inner_text()


def fresh(browser, limit="12", **more):
    page = browser.new_page(**more)
    page.faults, page.asked = [], []
    page.on("pageerror", lambda e: page.faults.append(str(e)))
    page.on("console", lambda m: page.faults.append(m.text) if "Content Security Policy" in m.text else None)
    page.on("request", lambda r: page.faults.append(r.url) if not r.url.startswith(URL) else None)
    page.on("request", lambda r: page.asked.append(json.loads(r.post_data)) if r.method == "POST" else None)
    page.goto(URL)
    until(page, lambda: page.locator("#model option").count() == 3)
    page.locator("summary").click()
    page.locator("#limit").fill(limit)
    page.locator("summary").click()
    return page


def say(page, text):
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")


def said(page, i):
    return [m["content"] for m in page.asked[i]["messages"]]


@test
def a_conversation_by_keyboard(browser):
    page = fresh(browser)
    page.locator("#text").focus()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    about = answered(page, 1)
    assert about.startswith("bare model") and "12 tokens" in about and "tokens/s" in about, about
    page.keyboard.type("And")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("then?")
    page.keyboard.press("Enter")
    about = answered(page, 2)
    cached = int(about.split(" cached")[0].split()[-1])
    assert cached > 0, about
    assert page.locator(".turn.user .body").nth(1).inner_text() == "And\nthen?"
    page.keyboard.press("Alt+n")
    assert page.locator(".turn").count() == 0
    assert not page.faults, page.faults


@test
def cartridges_answer_in_the_chosen_order(browser):
    page = fresh(browser)
    page.locator("input[value=two]").check()
    page.locator("input[value=one]").check()
    say(page, "Sheep?")
    about = answered(page, 1)
    assert about.startswith("behind two + one"), about
    page.screenshot(path=os.path.join(FOLDER, "page.png"))
    assert not page.faults, page.faults


def hold(page):
    """The answer is under way until it is stopped: its request waits here."""
    page.route("**/v1/chat/completions", lambda route: None)


@test
def a_stream_stops_at_escape(browser):
    page = fresh(browser, limit="")
    say(page, "Go on and on")
    until(page, lambda: len(page.locator(".turn.assistant .body").text_content()) > 5)
    page.keyboard.press("Escape")
    assert "stopped by you" in answered(page, 1)


@test
def what_is_forgotten_while_it_is_answered_stays_out_of_the_next_conversation(browser):
    page = fresh(browser)
    hold(page)
    say(page, "The old one")
    until(page, lambda: len(page.asked) == 1)
    page.keyboard.press("Alt+n")
    page.unroute("**/v1/chat/completions")
    say(page, "The new one")
    answered(page, 1)
    say(page, "And then?")
    answered(page, 2)
    assert said(page, 1) == ["The new one"], page.asked
    assert said(page, 2)[::2] == ["The new one", "And then?"] and len(said(page, 2)) == 3, page.asked
    assert not page.faults, page.faults


@test
def what_got_no_answer_is_not_sent_again(browser):
    page = fresh(browser)
    say(page, "x " * 4000)
    page.locator(".fault").wait_for()
    assert "maximum context length" in page.locator(".fault").inner_text()
    hold(page)
    say(page, "Never mind")
    until(page, lambda: len(page.asked) == 2)
    page.keyboard.press("Escape")
    answered(page, 2)
    page.unroute("**/v1/chat/completions")
    say(page, "Hello")
    answered(page, 3)
    assert said(page, 2) == ["Hello"], page.asked[2]
    assert page.locator(".fault").count() == 1


@test
def boxes_show_what_is_chosen(browser):
    page = fresh(browser)
    page.locator("input[value=one]").check()
    page.locator("summary").click()
    page.locator("#key").fill("another")
    with page.expect_response("**/props"):
        page.locator("#key").press("Tab")
    until(page, lambda: page.locator("input[value=one]").count() == 1)
    chosen = page.locator("input[type=checkbox][value]:checked").count()
    say(page, "Hello")
    about = answered(page, 1)
    assert chosen == 0 and about.startswith("bare model"), (chosen, about)


@test
def a_phone_in_the_dark(browser):
    page = fresh(browser, viewport={"width": 360, "height": 640}, color_scheme="dark")
    say(page, "Hi")
    answered(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 26)"
    page.screenshot(path=os.path.join(FOLDER, "page-phone.png"))
    assert not page.faults, page.faults


def main():
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not path:
        print("1..0 # SKIP machine: chromium-headless-shell is not installed")
        return 0
    bad = 0
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for i, f in enumerate(tests, 1):
            try:
                f(browser)
                print(f"ok {i} - {f.__name__.replace('_', ' ')}", flush=True)
            except Exception:  # a test that fails in any way is one line of the report
                bad += 1
                print(f"not ok {i} - {f.__name__.replace('_', ' ')}", flush=True)
                print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
        browser.close()
    print(f"1..{len(tests)}")
    return bad > 0


sys.exit(main())
