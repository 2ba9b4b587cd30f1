//! What the documents have a reader run: blocks of shell in Markdown, and the configuration that they are about.
//!
//! A block in the language `sh` is run. Words behind the language, which renderers leave alone, are marks:
//!
//! | Mark | Meaning |
//! |---|---|
//! | `host-only` | it needs a real host (packages, units, NICs, a checkout) and is not run |
//! | `client` | it runs on a client, not on the load balancer's host |
//! | `stays` | its last command is the `lb run` that the rest of the page is about |
//! | `exit-N` | its exit status, instead of 0 |
//!
//! A block `text output` behind it has lines that it prints, see [`missing_line`].

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

/// Generated from the command line, without a block of shell.
const GENERATED: &str = "docs/command-line.md";
/// Languages in which a snippet would be overlooked.
const OTHER_SHELLS: [&str; 5] = ["bash", "console", "shell", "shell-session", "zsh"];

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its path from the root of the workspace.
    pub name: String,
    /// Its first whole configuration.
    pub configuration: Option<String>,
    /// Its blocks of shell, in their order.
    pub snippets: Vec<Snippet>,
}

/// A block of shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snippet {
    /// The line of its first command, from 1.
    pub line: usize,
    /// Its lines.
    pub commands: String,
    /// Where it runs.
    pub place: Place,
    /// What becomes of its last command.
    pub end: End,
    /// Lines that it prints.
    pub output: Option<String>,
}

/// Where a snippet runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the host of the load balancer.
    LoadBalancer,
    /// On a client.
    Client,
    /// On a real host alone.
    RealHost,
}

/// How a snippet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exit(i32),
    /// Not by itself.
    Stays,
}

/// README and all pages below `docs`, in the order of their names.
///
/// # Errors
///
/// When one cannot be read, or has a block that means nothing, with its line.
pub fn read(root: &Path) -> Result<Vec<Page>> {
    let mut paths = vec![root.join("README.md")];
    collect(&root.join("docs"), &mut paths)?;
    paths.sort();
    let mut pages = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        let name = name.to_string();
        if name != GENERATED {
            let text = fs::read_to_string(&path).with_context(|| format!("read {name}"))?;
            pages.push(Page::parse(&name, &text)?);
        }
    }
    Ok(pages)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
    Ok(())
}

impl Page {
    /// Reads the blocks of a document.
    ///
    /// # Errors
    ///
    /// When a block has an unknown mark or no end, with its line.
    pub fn parse(name: &str, markdown: &str) -> Result<Self> {
        let mut page = Self {
            name: name.to_owned(),
            configuration: None,
            snippets: Vec::new(),
        };
        let mut follows_snippet = false;
        for block in blocks(markdown).with_context(|| format!("read {name}"))? {
            let place = format!("{name}:{}", block.line);
            page.add(block, &mut follows_snippet).context(place)?;
        }
        Ok(page)
    }

    fn add(&mut self, block: Block<'_>, follows_snippet: &mut bool) -> Result<()> {
        let Block { line, info, text } = block;
        let mut words = info.split_whitespace();
        let language = words.next().unwrap_or_default();
        let marks: Vec<&str> = words.collect();
        let was_snippet = std::mem::replace(follows_snippet, language == "sh");
        match (language, &marks[..]) {
            ("sh", marks) => self.snippets.push(Snippet::new(line, text, marks)?),
            ("text", ["output"]) => {
                let snippet = self.snippets.last_mut().filter(|_| was_snippet);
                let snippet = snippet.context("output behind no block of shell")?;
                snippet.output = Some(text);
            }
            (language, []) => {
                let is_overlooked = OTHER_SHELLS.contains(&language) || language.contains(',');
                ensure!(
                    !is_overlooked,
                    "{language}: write sh, and marks behind a space"
                );
                if language == "yaml" && text.starts_with("version:") {
                    self.configuration.get_or_insert(text);
                }
            }
            (language, marks) => bail!("{language}: unknown marks {}", marks.join(" ")),
        }
        Ok(())
    }
}

impl Snippet {
    fn new(line: usize, commands: String, marks: &[&str]) -> Result<Self> {
        let (mut place, mut end) = (Place::LoadBalancer, End::Exit(0));
        for mark in marks {
            match *mark {
                "host-only" => place = Place::RealHost,
                "client" => place = Place::Client,
                "stays" => end = End::Stays,
                _ => {
                    let status = mark.strip_prefix("exit-").and_then(|n| n.parse().ok());
                    end = End::Exit(status.with_context(|| format!("unknown mark {mark}"))?);
                }
            }
        }
        Ok(Self {
            line,
            commands,
            place,
            end,
            output: None,
        })
    }
}

/// The first of the `shown` lines that is not among the `printed` ones, in their order.
///
/// A printed line is the shown one if it has its words in the same order, and maybe others between them. Words with
/// a digit (addresses, numbers, times) may be any.
pub fn missing_line<'s>(shown: &'s str, printed: &str) -> Option<&'s str> {
    let mut printed = printed.lines();
    let mut is_printed = |line: &str| {
        printed.any(|printed| {
            let mut words = printed.split_whitespace();
            fixed_words(line).all(|word| words.any(|printed| printed == word))
        })
    };
    shown.lines().find(|line| !is_printed(line))
}

fn fixed_words(line: &str) -> impl Iterator<Item = &str> {
    let has_digit = |word: &&str| word.bytes().any(|byte| byte.is_ascii_digit());
    line.split_whitespace().filter(move |word| !has_digit(word))
}

/// A block of code: the line of its first line from 1, the words behind its fence, and its lines.
#[derive(Debug, PartialEq, Eq)]
struct Block<'m> {
    line: usize,
    info: &'m str,
    text: String,
}

fn blocks(markdown: &str) -> Result<Vec<Block<'_>>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for (number, line) in (1..).zip(markdown.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => {
                open = Some(Block {
                    line: number + 1,
                    info: info.trim(),
                    text: String::new(),
                });
            }
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    match open {
        None => Ok(blocks),
        Some(block) => bail!("the block at line {} has no end", block.line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(markdown: &str) -> Result<Page> {
        Page::parse("a.md", markdown)
    }

    fn problem(markdown: &str) -> String {
        format!("{:#}", parse(markdown).unwrap_err())
    }

    #[test]
    fn a_page_has_its_configuration_and_snippets() {
        let page = parse(
            "# A\n\n```yaml\nservices: {}\n```\n```yaml\nversion: 1\na: b\n```\n```yaml\nversion: 1\n```\n\n\
             ```sh\nlb check lb.yaml   # comment\nlb status\n```\n\nIt prints\n\n```text output\nNIC  eth0\n```\n\
             ```text\npicture\n```\n```sh host-only\ncargo xtask run\n```\n",
        )
        .unwrap();
        let [first, second] = &page.snippets[..] else {
            panic!("{page:?}")
        };
        assert_eq!(page.configuration.as_deref(), Some("version: 1\na: b\n"));
        assert_eq!(first.line, 15);
        assert_eq!(first.commands, "lb check lb.yaml   # comment\nlb status\n");
        assert_eq!(
            (first.place, first.end),
            (Place::LoadBalancer, End::Exit(0))
        );
        assert_eq!(first.output.as_deref(), Some("NIC  eth0\n"));
        assert_eq!((second.place, &second.output), (Place::RealHost, &None));
    }

    #[test]
    fn marks_say_where_and_how() {
        let page = parse("```sh client exit-28\na\n```\n```sh stays\nb\n```\n").unwrap();
        let found: Vec<_> = page
            .snippets
            .iter()
            .map(|one| (one.place, one.end))
            .collect();
        assert_eq!(
            found,
            [
                (Place::Client, End::Exit(28)),
                (Place::LoadBalancer, End::Stays),
            ]
        );
    }

    #[test]
    fn what_means_nothing_is_a_problem_with_its_line() {
        for (markdown, words) in [
            (
                "\n```sh hostonly\na\n```\n",
                "a.md:3: unknown mark hostonly",
            ),
            ("```sh exit-x\na\n```\n", "a.md:2: unknown mark exit-x"),
            (
                "```sh,host-only\na\n```\n",
                "a.md:2: sh,host-only: write sh, and marks behind a space",
            ),
            (
                "```bash\na\n```\n",
                "a.md:2: bash: write sh, and marks behind a space",
            ),
            (
                "```yaml output\na\n```\n",
                "a.md:2: yaml: unknown marks output",
            ),
            (
                "```text output\na\n```\n",
                "a.md:2: output behind no block of shell",
            ),
            ("```sh\na\n", "read a.md: the block at line 2 has no end"),
        ] {
            assert_eq!(problem(markdown), words);
        }
    }

    #[test]
    fn output_is_compared_by_its_words() {
        let printed = "POOL   BACKEND  STATE  LAST\nkas-a  n1  up  12 ms ago\nkas-a  n2  up  -\n";
        for shown in [
            "",
            "POOL BACKEND STATE\n",
            "kas-a n2 up\n",
            "POOL LAST\nkas-a n9 up 99 ms ago\nkas-a n2 up\n",
        ] {
            assert_eq!(missing_line(shown, printed), None, "{shown}");
        }
        for (shown, missing) in [
            ("POOL ADDRESS", "POOL ADDRESS"),
            ("kas-a n1 dead\nPOOL", "kas-a n1 dead"),
            ("STATE POOL", "STATE POOL"),
            ("kas-a n2 up\nPOOL", "POOL"),
            ("kas-a up\nkas-a up\nkas-a up", "kas-a up"),
        ] {
            assert_eq!(missing_line(shown, printed), Some(missing), "{shown}");
        }
    }
}
