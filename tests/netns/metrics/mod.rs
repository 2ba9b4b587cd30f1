//! Metrics by HTTP: what they show, what reaches them, and what comes of those that abuse them.

mod abuse;
mod alerts;
mod browser;
mod browser_long;
mod chromium;
mod counts;
mod faults;
mod live;
mod page;
mod reach;
mod scrape;
mod size;
mod top;
