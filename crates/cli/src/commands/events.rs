//! `selvage events`.

use std::time::Duration;

use selvage_api::{
    Code,
    selvage::dashboard::{
        ListEventsRequest, ListEventsResponse, dashboard_service_client::DashboardServiceClient,
    },
};

use crate::{Error, duration, output, session::Session};

const LIST: &str = "selvage.dashboard.ListEventsResponse";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// `selvage events`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage events                                  of the last day, oldest first
  selvage events hello                            of objects with hello in their name
  selvage events --kind cloudlet --since 1h")]
pub struct Events {
    /// Name of an object, or part of it
    #[arg(value_name = "OBJECT", default_value = "", hide_default_value = true)]
    object: String,
    /// Only of this kind: appinst, clusterinst, cloudlet, machine, ...
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    kind: String,
    /// Only those of this last while, such as 30m or 12h [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    since: Option<Duration>,
    /// At most so many, the newest
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
    limit: u32,
}

/// Says which part is missing where nobody records events.
fn without_dashboard(error: Error) -> Error {
    if error.code() != Code::Unimplemented {
        return error;
    }
    Error::Status {
        code: Code::Unimplemented,
        message: "the dashboard records events, and none runs at this server".into(),
        hints: vec!["`selvage up` runs it; `selvage status` lists the parts of a server".into()],
    }
}

pub(crate) async fn run(args: Events, session: &mut Session<'_>) -> Result<(), Error> {
    let from = jiff::Timestamp::now().as_second()
        - i64::try_from(args.since.unwrap_or(DAY).as_secs()).unwrap_or(i64::MAX / 2);
    let request = ListEventsRequest {
        since: Some(prost_types::Timestamp { seconds: from.max(0), nanos: 0 }),
        kind: args.kind,
        name: String::new(),
        limit: args.limit,
        name_contains: args.object,
    };
    let client = session.client().await?;
    let mut found: ListEventsResponse = client
        .call(request, |channel, request| async move {
            DashboardServiceClient::new(channel).list_events(request).await
        })
        .await
        .map_err(without_dashboard)?;
    // On a terminal the newest stands where the eye is.
    found.events.reverse();
    if found.events.is_empty() && session.printer().is_table() {
        return session.io.say("Nothing happened in that time, or nothing that you may see.");
    }
    let message = output::dynamic(LIST, &found)?;
    session.printer().message(&message)
}
