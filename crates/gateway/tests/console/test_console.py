"""What a person does with the console, in a browser that runs it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    ViewportSize,
    expect,
)

import bed
from conftest import Place

ROWS = "#packets .page .row:not(.head)"


def rows(page: Page) -> Locator:
    """Return the rows of packets."""
    return page.locator(ROWS)


def state(page: Page) -> dict[str, str]:
    """Return what stands in the address."""
    told = parse_qs(urlsplit(page.url).fragment)
    return {key: values[0] for key, values in told.items()}


def ask(page: Page, text: str, packets: int) -> None:
    """Ask for a filter, and wait until so many packets are there."""
    page.fill("#filter", text)
    page.press("#filter", "Enter")
    told = re.compile(rf"^{packets:,} packets?\b")
    expect(page.locator("#packets-state")).to_have_text(told)


def numbers(text: str) -> list[int]:
    """Return the numbers of a text."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def test_the_first_view_has_all_of_the_store(page: Page, place: Place) -> None:
    """The histogram tells packets, bytes and what is missing."""
    stat = bed.get(f"{place.url}/v1/stat")
    losses = bed.get(f"{place.url}/v1/losses")
    assert losses["lost"] > 0 and losses["shed_packets"] > 0
    assert losses["unseen"] == bed.MISSED
    summary = page.locator("#summary")
    expect(summary).to_contain_text(f"{stat['packets']:,} packets")
    expect(summary).to_contain_text(f"{losses['lost']:,} packets lost")
    expect(summary).to_contain_text(f"{bed.MISSED} packets went unseen")
    expect(summary).to_contain_text(f"{losses['shed_packets']:,} packets shed payload")
    # The tallest bar is the number of packets in its part, as the gateway has it.
    histogram = bed.get(f"{place.url}/v1/histogram?parts=240")
    most = page.locator("#chart text", has_text="most:")
    expect(most).to_contain_text(f"{max(histogram['packets']):,} packets in")
    for kind in ("lost", "unseen", "shed"):
        expect(page.locator(f"#chart rect.{kind}").first).to_be_visible()
        expect(page.locator("#chart text.lane", has_text=kind)).to_have_count(1)
    page.check("input[value=bytes]")
    expect(most).to_contain_text("B in")
    assert state(page) == {"measure": "bytes"}
    page.locator("#losses summary").click()
    expect(page.locator("#losses li")).to_have_count(len(losses["gaps"]))


def test_a_span_is_chosen_by_dragging_and_by_keyboard(page: Page) -> None:
    """What is chosen is asked for, and stands in the address; so does what the chart shows."""
    box = page.locator("#chart svg").bounding_box()
    assert box is not None
    middle = box["y"] + 60
    page.mouse.move(box["x"] - 0 + box["width"] * 0.1, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    page.mouse.up()
    expect(page.locator("#after")).not_to_have_value("")
    chosen = state(page)
    assert chosen["after"] < chosen["before"]
    assert page.input_value("#after") == chosen["after"]
    expect(page.locator(".brush")).to_have_count(1)
    page.click("#zoom")
    expect(page.locator("#summary")).to_contain_text(chosen["after"][:19])
    assert state(page)["from"] == chosen["after"]
    page.click("#whole")
    expect(page.locator("#after")).to_have_value("")
    expect(page.locator("#packets-state")).to_contain_text("The first 1,000 packets")
    # The same with keys alone.
    end = page.get_by_label("The span ends")
    assert end.get_attribute("aria-valuetext") == "the end"
    end.focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#before")).not_to_have_value("")
    assert end.get_attribute("aria-valuetext") == state(page)["before"]
    assert "after" not in state(page)
    page.go_back()
    expect(page.locator("#before")).not_to_have_value("")


def test_a_filter_says_what_it_means_while_it_is_typed(page: Page) -> None:
    """Nothing is asked for before Enter."""
    meaning = page.locator("#meaning")
    page.locator("#filter").press_sequentially("port 5")
    expect(meaning).to_contain_text("Compiles: (src or dst port 5)")
    page.locator("#filter").press_sequentially("3 and")
    expect(meaning).to_contain_text("Does not compile")
    expect(page.locator("#filter")).to_have_attribute("aria-invalid", "true")
    assert state(page) == {}
    ask(page, "port 6667", 1)
    expect(meaning).to_contain_text("source port 6667 or destination port 6667")
    assert state(page) == {"filter": "port 6667"}
    # A filter that makes no sense changes nothing.
    page.fill("#filter", "port 53)")
    page.press("#filter", "Enter")
    expect(meaning).to_contain_text("Does not compile")
    assert state(page) == {"filter": "port 6667"}
    ask(page, "tcp[tcpflags] & tcp-syn != 0 and src port 443", bed.WEB // 2)


def test_more_packets_come_on_scrolling(page: Page) -> None:
    """Each packet is there once, in the order of time."""
    expect(rows(page)).to_have_count(1000)
    page.fill("#filter", "net 192.0.2.0/24")
    # What is said of the packets is the same as before, so it does not tell that they are others.
    with page.expect_response(lambda answer: "/packets?" in answer.url and "filter=" in answer.url):
        page.press("#filter", "Enter")
    expect(page.locator("#packets")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#packets-state")).to_contain_text("The first 1,000 packets")
    page.locator("#more").scroll_into_view_if_needed()
    expect(rows(page)).to_have_count(2000)
    while page.locator("#more").is_visible():
        before = rows(page).count()
        page.locator("#more").scroll_into_view_if_needed()
        expect(page.locator("#packets-state")).not_to_contain_text(f"first {before:,} packets")
    ids = page.locator("#packets .time").evaluate_all("all => all.map(one => one.dataset.id)")
    assert len(ids) == len(set(ids)) == rows(page).count() > 2000
    order = [tuple(int(part) for part in name.split("~")) for name in ids]
    assert order == sorted(order)
    assert numbers(page.locator("#packets-state").inner_text())[0] == len(ids)


def test_a_row_has_what_a_packet_is_and_opens(page: Page, place: Place) -> None:
    """A row opens with a click or a key as fields and bytes, and what is open can be sent."""
    ask(page, "src port 443", bed.WEB // 2)
    first = rows(page).first
    for kind, text in [
        ("source", "198.51.100.80:443"),
        ("destination", "192.0.2.7:50000"),
        ("protocol", "tcp"),
        ("length", "54"),
        ("flags", "SYN ACK"),
    ]:
        expect(first.locator(f".{kind}")).to_have_text(text)
    time = first.locator(".time")
    expect(time).to_have_text(re.compile(r"^\d\d:\d\d:\d\d\.\d{9}$"))
    time.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    inside = page.locator(".inside")
    expect(inside.locator(".field", has_text="Destination port")).to_have_text(
        "Destination port 50001"
    )
    expect(rows(page).nth(1).locator(".time")).to_have_attribute("aria-expanded", "true")
    sent = bed.FRAMES[bed.DNS + bed.WEB // 2 + 1]
    expect(inside.locator(".hex")).to_be_visible()
    digits = inside.locator(".digits > span").all_inner_texts()
    assert bytes.fromhex("".join(digits)) == sent
    # The bytes of a field are marked.
    inside.locator(".field", has_text="Destination port").click()
    marked = inside.locator(".digits .marked").all_inner_texts()
    assert bytes.fromhex("".join(marked)) == (50001).to_bytes(2, "big")
    # Somebody else sees the same.
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".field", has_text="Destination port")).to_have_text(
        "Destination port 50001"
    )
    other.close()
    page.keyboard.press("Shift+Tab")
    rows(page).nth(1).locator(".time").press("Enter")
    expect(inside).to_have_count(0)
    assert "open" not in state(page)


def test_hosts_and_ports_lead_to_packets(page: Page) -> None:
    """A host of the list becomes a part of the filter."""
    page.get_by_role("button", name="192.0.2.66", exact=True).click()
    expect(rows(page)).to_have_count(1)
    assert state(page)["filter"] == "host 192.0.2.66"
    page.get_by_role("button", name="53", exact=True).click()
    expect(page.locator("#packets-state")).to_have_text(re.compile("^0 packets"))
    assert state(page)["filter"] == "(host 192.0.2.66) and port 53"


def test_packets_can_be_taken_away(page: Page, place: Place, tmp_path: Path) -> None:
    """As a file, and as commands that give the same packets."""
    ask(page, "tcp and not src port 443", bed.WEB // 2)
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "edge.pcapng"
    file = tmp_path / "edge.pcapng"
    download.value.save_as(file)

    def printed(command: str) -> list[str]:
        path = f"{place.bed.build}:/usr/sbin:/usr/bin:/sbin:/bin"
        run = subprocess.run(
            command, shell=True, check=True, capture_output=True, text=True, env={"PATH": path}
        )
        return run.stdout.splitlines()

    lines = printed(f"tcpdump -nn -tt -r {file}")
    assert len(lines) == bed.WEB // 2
    page.click("#copy-wireshark")
    command = page.locator("#copied pre")
    expect(command).to_contain_text("wireshark -k -i -")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == command.inner_text()
    assert printed(copied.replace("wireshark -k -i -", "tcpdump -nn -tt -r -")) == lines
    page.click("#copy-query")
    expect(command).to_contain_text("tapdeck query --dir")
    assert printed(f"{command.inner_text()} -w - | tcpdump -nn -tt -r -") == lines
    # What is in a filter stays in its word, whatever the shell makes of its signs.
    words = ["port 53", '\'; echo $(id) `id` "$HOME" \\', "", "-x", "a&b|c>d", "~root", "*"]
    quoted = page.evaluate(
        "async (all) => all.map((await import('/console/copy.js')).quote)", words
    )
    assert printed(f"printf '%s\\n' {' '.join(quoted)}") == words


def test_rates_are_told_while_packets_come(page: Page, place: Place) -> None:
    """The recorder's numbers of each second."""
    told = page.locator("#rates")
    expect(told).to_contain_text("packets/s")
    outside = [bed.udp("192.0.2.200", "203.0.113.9", (1, 2), b"now")] * 400
    place.bed.send(outside)
    expect(told).to_have_text(re.compile(r"^[1-9][\d,]* packets/s .* 0 lost/s · 0 unseen/s$"))
    page.click("#refresh")
    # What was sent is at the end of the store.
    ask(page, "host 203.0.113.9", 400)


def test_what_packets_say_stays_text(page: Page) -> None:
    """No name and no payload becomes markup, and nothing turns or hides what stands beside it."""
    ask(page, "port 6667", 1)
    shown = "<b>\\u{1b}[1m\\u{202e}x"
    expect(rows(page).first.locator(".interface")).to_have_text(shown)
    rows(page).first.locator(".time").click()
    expect(page.locator(".hex")).to_be_visible()
    seen = "".join(page.locator(".letters > span").all_text_contents())
    assert "<script>owned=1</script><img src=x onerror=owned=1>·[2J···exe.txt" in seen
    expect(page.locator("main script, main img, main b:has(*)")).to_have_count(0)
    text = page.locator("body").inner_text()
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text
    )
    # The same by the address, which anybody can send.
    page.goto(page.url.split("#")[0] + "#filter=%3Cimg%20src%3Dx%20onerror%3Downed%3D1%3E")
    page.reload()
    expect(page.locator("#filter")).to_have_value("<img src=x onerror=owned=1>")
    expect(page.locator("#meaning")).to_contain_text("<img src=x onerror=owned=1>")
    expect(page.locator("main img")).to_have_count(0)


def test_no_page_of_somebody_elses_can_ask(place: Place, context: BrowserContext) -> None:
    """Neither by a script nor by a picture or a form, in the name of whoever has that browser."""
    log = place.bed.directory / "audit.jsonl"
    page = context.new_page()
    # Another origin, and another site, on this machine.
    other = place.bed.gateway('[[listen]]\naddress = "127.0.0.1:0"')
    other = other.replace("127.0.0.1", "localhost")
    page.goto(f"{other}/healthz")
    before = log.read_text().count('"asked"')
    url = f"{place.url}/v1/packets"
    outcome = page.evaluate(
        """async (url) => {
          const status = async (how) => (await fetch(url, how)).type;
          const picture = new Image();
          const failed = new Promise((done) => { picture.onerror = () => done("failed"); });
          picture.src = url;
          return [await status({ mode: "no-cors" }), await failed,
            await status({}).catch(() => "refused")];
        }""",
        url,
    )
    assert outcome == ["opaque", "failed", "refused"]
    assert log.read_text().count('"asked"') == before
    head = page.request.get(f"{place.url}/console/").headers
    assert "default-src 'none'" in head["content-security-policy"]
    assert "unsafe" not in head["content-security-policy"]
    assert head["x-content-type-options"] == "nosniff"


def test_a_token_is_asked_for_and_kept_in_the_tab(
    place: Place, context: BrowserContext, tmp_path: Path
) -> None:
    """Who shows nothing gets the page, and nothing else until a token is typed."""
    program = str(place.bed.build / "tapdeck-gateway")
    made = subprocess.run(
        [program, "token", "new", "alice"], check=True, capture_output=True, text=True
    )
    token, line = made.stdout.splitlines()
    url = place.bed.gateway(
        f'[[listen]]\naddress = "127.0.0.1:0"\n[[role]]\nname = "some"\nkind = "reader"\n'
        f'filter = "tcp"\n[[user]]\nname = "alice"\nrole = "some"\n{line}\n'
    )
    page = context.new_page()
    page.goto(f"{url}/console/")
    expect(page.locator("#login")).to_be_visible()
    expect(page.locator("#view")).to_be_hidden()
    page.fill("#token", "alice.wrong")
    page.press("#token", "Enter")
    expect(page.locator("#trouble")).to_contain_text("does not know this token")
    page.fill("#token", token)
    page.press("#token", "Enter")
    # The role has a filter: it sees its packets, and no histogram of all.
    expect(page.locator("#packets-state")).to_contain_text(f"{bed.WEB} packets")
    expect(page.locator("#user")).to_contain_text("alice, who sees tcp")
    expect(page.locator("#summary")).to_contain_text("your role has a filter")
    with page.expect_download() as download:
        page.click("#download")
    file = tmp_path / "edge.pcapng"
    download.value.save_as(file)
    told = subprocess.run(
        ["tcpdump", "-nn", "-r", str(file)], check=True, capture_output=True, text=True
    )
    assert len(told.stdout.splitlines()) == bed.WEB
    page.click("#copy-wireshark")
    expect(page.locator("#copied pre")).to_contain_text('"Authorization: Bearer $TOKEN"')
    assert page.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
    assert token not in page.url + page.content()
    page.click("#forget")
    expect(page.locator("#login")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


# A certificate authority, and certificates for the gateway and for alice.
CERTIFICATES = """
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca
for name in gateway alice; do
  openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name
  echo 'extendedKeyUsage=clientAuth' >ext
  [ $name = gateway ] &&
    printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth\\n' >ext
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem \\
    -days 1 -extfile ext
done
"""


def test_a_certificate_is_enough(place: Place, browser: Browser, tmp_path: Path) -> None:
    """Over HTTPS the browser shows the certificate, and nobody types anything."""
    subprocess.run(["bash", "-ec", CERTIFICATES], cwd=tmp_path, check=True, capture_output=True)
    port = bed.free_port()
    place.bed.gateway(
        f'[[listen]]\naddress = "127.0.0.1:0"\n[[listen]]\naddress = "127.0.0.1:{port}"\n'
        f'certificate = "{tmp_path}/gateway.pem"\nkey = "{tmp_path}/gateway.key"\n'
        f'client-ca = "{tmp_path}/ca.pem"\n[[role]]\nname = "all"\nkind = "reader"\n'
        '[[user]]\nname = "alice"\nrole = "all"\ncertificate = "alice"\n'
    )
    url = f"https://127.0.0.1:{port}"
    cert, key = tmp_path / "alice.pem", tmp_path / "alice.key"
    context = browser.new_context(
        client_certificates=[{"origin": url, "certPath": cert, "keyPath": key}],
        ignore_https_errors=True,
    )
    page = context.new_page()
    page.goto(f"{url}/")
    expect(page.locator("#packets-state")).to_contain_text("The first 1,000 packets")
    expect(page.locator("#user")).to_have_text("alice")
    page.click("#copy-wireshark")
    expect(page.locator("#copied pre")).to_contain_text("curl -fsS --cert you.pem --key you.key")
    context.close()


def test_one_store_is_shown_without_a_configuration(
    place: Place, context: BrowserContext, tmp_path: Path
) -> None:
    """Who has the address that is printed sees the store, and nobody else on this machine."""
    out = tmp_path / "out"
    with out.open("w") as stdout:
        program = subprocess.Popen(
            [place.bed.build / "tapdeck-gateway", "--store", place.bed.store],
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
    try:
        url = bed.wait_for("the address", lambda: out.read_text().strip())
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#packets-state")).to_contain_text("The first 1,000 packets")
        assert state(page) == {}
        for path in ("v1/stat", "metrics", "healthz", "readyz"):
            other = page.request.get(f"{url.split('/console/')[0]}/{path}")
            assert other.status == 401, path
        # A link with another token changes nothing.
        page.goto(url.split("#")[0] + "#token=you.00&filter=port+6667")
        page.reload()
        expect(page.locator("#packets-state")).to_have_text(re.compile("^1 packet"))
        assert state(page) == {"filter": "port 6667"}
    finally:
        program.terminate()
        assert program.wait(bed.PATIENCE_S) == 0


# Alice may pin, and whoever shows nothing may look.
PINNERS = """
[[listen]]
address = "127.0.0.1:0"
user = "alice"
[[listen]]
address = "127.0.0.1:{port}"
user = "carol"
[[role]]
name = "pins"
kind = "pinner"
[[role]]
name = "looks"
kind = "reader"
[[user]]
name = "alice"
role = "pins"
[[user]]
name = "carol"
role = "looks"
"""


def pinning(place: Place, evidence: Path) -> tuple[str, str]:
    """Start a gateway with pins of its own; return the addresses of a pinner and of a reader."""
    port = bed.free_port()
    url = place.bed.gateway(PINNERS.format(port=port), f'evidence = "{evidence}"')
    return url, f"http://127.0.0.1:{port}"


def open_pins(page: Page, url: str) -> None:
    """Open the console and its pins."""
    page.goto(url)
    page.wait_for_selector("#hosts table")
    page.locator("#pins > summary").click()
    expect(page.locator("#pins-state")).to_have_text(re.compile(r"pinned|\d pins?\b"))


def test_pins_are_made_and_removed_by_who_may(
    place: Place, context: BrowserContext, said: list[str], tmp_path: Path
) -> None:
    """What is shown is pinned, with a reason; a reader sees it and has no button for it."""
    alice, carol = pinning(place, tmp_path / "pins")
    page = context.new_page()
    filter = "src port 6666 or src port 443"
    # A link fills in fields, and pins nothing.
    span = "after=2020-01-01T00:00:00Z&before=2100-01-01T00:00:00Z"
    open_pins(page, f"{alice}/console/#{span}&filter={filter.replace(' ', '+')}")
    expect(page.locator("#pins-state")).to_contain_text("Nothing is pinned")
    expect(page.locator("#pin-filter")).to_have_value(filter)
    expect(page.locator("#pin-after")).to_have_value("2020-01-01T00:00:00Z")
    # What the gateway refuses, and what is no time, is told beside the form.
    page.fill("#pin-reason", "<b>case</b> \u202e7")
    page.press("#pin-reason", "Enter")
    trouble = page.locator("#pin-trouble")
    expect(trouble).to_contain_text("no more than a day from now")
    page.fill("#pin-before", "soon")
    page.press("#pin-before", "Enter")
    expect(trouble).to_contain_text("write a time as")
    expect(page.locator("#pin-before")).to_be_focused()
    expect(page.locator("#pin-before")).to_have_attribute("aria-invalid", "true")
    assert not (tmp_path / "pins").exists()
    ended = bed.get(f"{alice}/v1/stat")["last"]
    page.fill("#pin-before", ended)
    page.fill("#pin-until", "2100-01-01")
    page.press("#pin-until", "Enter")
    expect(page.locator("#pins-state")).to_contain_text("Pin 1 is made")
    expect(trouble).to_be_hidden()
    bed.wait_for("the copy", lambda: bed.get(f"{alice}/v1/pins/1")["state"] == "done")
    page.click("#pins-refresh")
    pin = page.locator(".pin")
    expect(pin).to_have_count(1)
    expect(pin.locator(".state")).to_have_text("done")
    expect(pin).to_contain_text(f"{bed.WEB // 2 + 1} packets")
    expect(pin).to_contain_text("until 2100-01-01T00:00:00Z")
    expect(pin).to_contain_text("for alice")
    # What somebody wrote stays text, and what the recording lacks is told.
    expect(pin.locator(".reason")).to_have_text("<b>case</b> \\u{202e}7")
    expect(page.locator("#pins b:not(.state)")).to_have_count(0)
    pin.locator("summary").click()
    expect(pin.locator("details li").first).to_contain_text("dropped")
    with page.expect_download() as download:
        pin.get_by_role("link", name="Download packets of pin 1").click()
    assert download.value.suggested_filename == "edge-pin-1.pcapng"
    assert download.value.path().stat().st_size > 1000
    # A reader sees the same, and can do nothing to it.
    other = context.new_page()
    open_pins(other, f"{carol}/")
    expect(other.locator(".pin .reason")).to_have_text("<b>case</b> \\u{202e}7")
    expect(other.locator("#new-pin")).to_be_hidden()
    expect(other.locator(".pin button")).to_have_count(0)
    other.close()
    # It is removed by keys alone, after one question.
    pin.get_by_role("button", name="Remove pin 1").press("Enter")
    expect(pin.get_by_role("button", name="Remove it")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(pin.get_by_role("button", name="Remove pin 1")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#pins-state")).to_contain_text("Pin 1 is removed. Nothing is pinned")
    expect(page.locator("#pins-state")).to_be_focused()
    assert bed.get(f"{carol}/v1/pins")["pins"] == []
    assert [text for text in said if "400 (Bad Request)" not in text] == []


def test_of_many_pins_the_newest_come_first(
    place: Place, context: BrowserContext, tmp_path: Path
) -> None:
    """A hundred are shown, and more when they are wanted; one that cannot be read is named."""
    pins = tmp_path / "pins"
    url, _ = pinning(place, pins)
    page = context.new_page()
    span = {"after": "2020-01-01T00:00:00Z", "before": bed.get(f"{url}/v1/stat")["last"]}
    answer = page.request.post(f"{url}/v1/pins", data={**span, "reason": "case 7"})
    assert answer.status == 201, answer.text()
    bed.wait_for("the copy", lambda: bed.get(f"{url}/v1/pins/1")["state"] == "done")
    made = json.loads((pins / "pin-00000001" / "pin.json").read_text())
    for number in range(2, 121):
        pin = pins / f"pin-{number:08}"
        pin.mkdir()
        (pin / "pin.json").write_text(json.dumps({**made, "number": number}))
    (pins / "pin-00000120" / "pin.json").write_text("{")
    open_pins(page, f"{url}/")
    shown = page.locator(".pin")
    expect(shown).to_have_count(99)
    expect(shown.first).to_contain_text("Pin 119: case 7")
    expect(page.locator("#pins-state")).to_contain_text("Cannot be read: pin 120.")
    page.get_by_role("button", name="Show older pins").click()
    expect(shown).to_have_count(119)
    expect(shown.last).to_contain_text("Pin 1: case 7")
    expect(page.locator("#pins-more")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_each_view_is_for_everybody(
    browser: Browser,
    place: Place,
    pytestconfig: pytest.Config,
    width: int,
    scheme: Literal["light", "dark"],
    tmp_path: Path,
) -> None:
    """Axe finds nothing serious, and nothing is wider than the window, in any view."""
    viewport: ViewportSize = {"width": width, "height": 800}
    # Axe is put into the page by the test, which the page itself would not allow anybody.
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    page = context.new_page()
    pictures = pytestconfig.getoption("--pictures")

    def look(view: str) -> None:
        results = Axe().run(page)
        found = results.response["violations"]
        grave = [v for v in found if v["impact"] in ("serious", "critical")]
        assert grave == [], results.generate_report()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{view} is {wide} wide"
        if pictures:
            page.screenshot(path=pictures / f"{view}-{width}-{scheme}.png", full_page=True)

    page.goto(f"{place.url}/")
    expect(page.locator("#hosts table")).to_have_count(2)
    ask(page, "src port 40001 or port 6667", bed.DNS // 50 + 1)
    look("first")
    page.fill("#filter", "prot 80")
    expect(page.locator("#meaning.bad")).to_be_visible()
    page.locator("#losses summary").click()
    page.click("#copy-query")
    page.get_by_label("The span ends").focus()
    look("asking")
    ask(page, "port 6667", 1)
    rows(page).first.locator(".time").click()
    page.locator(".field", has_text="Destination port").click()
    look("open")
    url, _ = pinning(place, tmp_path / "pins")
    ended = bed.get(f"{url}/v1/stat")["last"]
    for reason, filter, before in [
        (
            "case 7: a reason of some length, which says why somebody wanted these packets",
            "",
            ended,
        ),
        ("case 8", "host 192.0.2.66 and udp port 6667", ended),
    ]:
        wanted = {"filter": filter, "after": "2020-01-01T00:00:00Z", "before": before}
        answer = page.request.post(f"{url}/v1/pins", data={**wanted, "reason": reason})
        assert answer.status == 201, answer.text()
    bed.wait_for("the copies", lambda: bed.get(f"{url}/v1/pins/2")["state"] == "done")
    pins = context.new_page()
    page.close()
    page = pins
    open_pins(page, f"{url}/console/#filter=port+6667")
    page.locator(".pin summary").first.click()
    page.locator(".pin .remove").nth(1).click()
    look("pins")
    login = context.new_page()
    page.close()
    page = login
    page.goto(place.bed.gateway('[[listen]]\naddress = "127.0.0.1:0"'))
    expect(page.locator("#login")).to_be_visible()
    look("login")
    context.close()
