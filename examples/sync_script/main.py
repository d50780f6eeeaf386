"""A plain script: the same API without `await`."""

import tempfile

from holdfast import sync


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync.connect(cwd=folder) as env:
        env.files.write("fruit.txt", "pear\napple\n")
        done = env.run("sort fruit.txt", timeout=60, check=True)
        assert done.stdout == "apple\npear\n"
        print(done)

        with env.start("while read line; do echo got $line; done") as process:
            process.write("plums\n")
            for chunk in process.output():
                print(chunk.stream, chunk.text, end="")
                break
        assert process.wait().reason == "terminated"  # by the end of the block


main()
