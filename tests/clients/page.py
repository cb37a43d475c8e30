#!/usr/bin/env python3
"""page.py URL FOLDER: the page of a running server in headless Chromium: a conversation by keyboard alone, a cartridge
chosen, a stream stopped, on a phone's width and in the dark. Leaves screenshots in FOLDER."""
import os
import shutil
import sys
import traceback

from playwright.sync_api import sync_playwright

URL, FOLDER = sys.argv[1], sys.argv[2]
tests = []


def test(f):
    tests.append(f)
    return f


def answered(page, n):
    page.wait_for_function("n => document.querySelectorAll('.turn.assistant .about').length === n && "
                           "[...document.querySelectorAll('.turn.assistant .about')].pop().textContent !== '' && "
                           "document.querySelector('#send').textContent === 'Send'", arg=n, timeout=60000)
    return page.locator(".turn.assistant .about").nth(n - 1).inner_text()


def fresh(browser, **more):
    page = browser.new_page(bypass_csp=True, **more)  # the policy would stop what the test evaluates, too
    page.faults = []
    page.on("pageerror", lambda e: page.faults.append(str(e)))
    page.on("request", lambda r: page.faults.append(r.url) if not r.url.startswith(URL) else None)
    page.goto(URL)
    page.wait_for_function("document.querySelectorAll('#model option').length === 3")
    page.locator("summary").click()
    page.locator("#limit").fill("12")
    page.locator("summary").click()
    return page


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
    page.locator("#text").fill("Sheep?")
    page.keyboard.press("Enter")
    about = answered(page, 1)
    assert about.startswith("behind two + one"), about
    page.screenshot(path=os.path.join(FOLDER, "page.png"))
    assert not page.faults, page.faults


@test
def a_stream_stops_at_escape(browser):
    page = fresh(browser)
    page.evaluate("document.getElementById('limit').value = ''")
    page.locator("#text").fill("Go on and on")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.turn.assistant .body').textContent.length > 5")
    page.keyboard.press("Escape")
    assert "stopped by you" in answered(page, 1)


@test
def an_error_is_shown(browser):
    page = fresh(browser)
    page.locator("#text").fill("x " * 4000)
    page.keyboard.press("Enter")
    page.wait_for_selector(".fault")
    assert "maximum context length" in page.locator(".fault").inner_text()


@test
def a_phone_in_the_dark(browser):
    page = fresh(browser, viewport={"width": 360, "height": 640}, color_scheme="dark")
    page.locator("#text").fill("Hi")
    page.keyboard.press("Enter")
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
